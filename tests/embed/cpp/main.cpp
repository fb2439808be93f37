/* A C++17 program with Python in it: containers in a pool, in four threads without the GIL.
 *
 * c++ -std=c++17 main.cpp -I$(python -c 'import cuda_pool; print(cuda_pool.get_include())') \
 *     $(python3-config --cflags --ldflags --embed) -pthread
 */
#include "pool.hpp"

#include <cstring>
#include <iostream>
#include <memory_resource>
#include <numeric>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

// Containers grow and shrink in the pool; returns how often they held something else than what was put into them.
static int fill_containers(std::pmr::memory_resource *resource, int seed)
{
    int faults = 0;
    for (int round = 0; round < 50; round++) {
        std::pmr::vector<int> numbers(resource);
        std::pmr::unordered_map<int, std::pmr::string> names(resource);
        for (int i = 0; i < 1000; i++) {
            numbers.push_back(seed + i);
            names.emplace(i, std::string(40, static_cast<char>('a' + (seed + i) % 26)));
        }
        faults += std::accumulate(numbers.begin(), numbers.end(), 0) != 1000 * seed + 499500;
        for (auto &[i, name] : names)
            faults += name != std::pmr::string(40, static_cast<char>('a' + (seed + i) % 26), resource);
    }
    return faults;
}

// Blocks replace one another; returns how many were damaged.
static int replace_blocks(embed::pool pool, int seed)
{
    int faults = 0;
    std::vector<embed::block> blocks;
    for (int round = 0; round < 2000; round++) {
        embed::block fresh(pool, 1 + static_cast<std::size_t>(round * 7919 + seed) % 30000);
        std::memset(fresh.data(), seed, fresh.size());
        if (blocks.size() < 32) {
            blocks.push_back(std::move(fresh));
            continue;
        }
        embed::block &old = blocks[static_cast<std::size_t>(round) % 32];
        auto bytes = static_cast<const unsigned char *>(old.data());
        for (std::size_t at = 0; at < old.size(); at++)
            if (bytes[at] != seed) {
                faults++;
                break;
            }
        old = std::move(fresh);
    }
    return faults;
}

static int run_threads(embed::pool pool)
{
    embed::pool_resource resource(pool);
    std::vector<int> faults(4);
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; i++)
        threads.emplace_back([&resource, &faults, pool, i] {
            faults[static_cast<std::size_t>(i)] = fill_containers(&resource, i) + replace_blocks(pool, i + 1);
        });
    for (auto &thread : threads)
        thread.join();
    return std::accumulate(faults.begin(), faults.end(), 0);
}

static int use_pool(embed::pool pool)
{
    PyThreadState *state = PyEval_SaveThread(); // the threads do not need the GIL
    int faults = run_threads(pool);
    try {
        pool.allocate(std::size_t(1) << 40);
        faults++;
    } catch (const std::bad_alloc &) {
        std::cout << "too much: bad_alloc\n";
    }
    PyEval_RestoreThread(state);

    cuda_pool_stats_t stats;
    stats.size = sizeof(stats);
    embed::require(cuda_pool_get_stats(pool.get(), &stats));
    std::cout << "faults " << faults << ", allocations " << stats.alloc_count << ", used " << stats.used << "\n";
    return faults != 0 || stats.used != 0;
}

int main()
{
    int failed = 1;
    Py_Initialize();
    if (import_cuda_pool() == 0 && PyRun_SimpleString("import cuda_pool\n"
                                                      "device = cuda_pool.sim.Device('64MiB')\n"
                                                      "pool = cuda_pool.Pool('32MiB', device=device)\n") == 0) {
        PyObject *object = PyObject_GetAttrString(PyImport_AddModule("__main__"), "pool");
        failed = use_pool(embed::pool(object));
        Py_XDECREF(object);
        failed |= PyRun_SimpleString("pool.check()");
    } else {
        PyErr_Print();
    }
    return Py_FinalizeEx() < 0 || failed;
}
