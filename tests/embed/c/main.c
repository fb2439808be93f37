/* A C program with Python in it: four threads allocate from one pool, without the GIL.
 *
 * cc -std=c99 main.c -I$(python -c 'import cuda_pool; print(cuda_pool.get_include())') \
 *     $(python3-config --cflags --ldflags --embed) -pthread
 */
#include "cuda_pool_import.h"

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum { THREADS = 4, BLOCKS = 64, ROUNDS = 5000 };

struct task {
    cuda_pool_t *pool;
    uint32_t seed;
    int damaged;
    int status; /* the first that was not CUDA_POOL_OK */
};

static int is_filled(const unsigned char *data, size_t nbytes, unsigned char value)
{
    for (size_t at = 0; at < nbytes; at++)
        if (data[at] != value)
            return 0;
    return 1;
}

static void release(struct task *task, void *block, size_t nbytes, unsigned char value)
{
    int status;
    if (block != NULL && !is_filled((const unsigned char *)block, nbytes, value))
        task->damaged++;
    status = cuda_pool_free(task->pool, block); /* NULL is accepted */
    if (task->status == CUDA_POOL_OK)
        task->status = status;
}

/* Replace one of BLOCKS blocks, ROUNDS times; the blocks' bytes are the thread's own. */
static void *work(void *argument)
{
    struct task *task = (struct task *)argument;
    void *block[BLOCKS] = {NULL};
    size_t nbytes[BLOCKS] = {0};
    uint32_t random = task->seed;
    for (int round = 0; round < ROUNDS && task->status == CUDA_POOL_OK; round++) {
        random = random * 1664525u + 1013904223u;
        unsigned at = random >> 26;
        release(task, block[at], nbytes[at], (unsigned char)(task->seed + at));
        nbytes[at] = 1 + (random >> 8) % 20000;
        task->status = cuda_pool_alloc(task->pool, nbytes[at], NULL, &block[at]); /* NULL if it fails */
        if (task->status == CUDA_POOL_OK)
            memset(block[at], (int)(task->seed + at), nbytes[at]);
    }
    for (unsigned at = 0; at < BLOCKS; at++)
        release(task, block[at], nbytes[at], (unsigned char)(task->seed + at));
    return NULL;
}

static int run_threads(cuda_pool_t *pool)
{
    pthread_t thread[THREADS];
    struct task task[THREADS];
    int faults = 0;
    for (int i = 0; i < THREADS; i++) {
        task[i] = (struct task){pool, (uint32_t)i + 1, 0, CUDA_POOL_OK};
        if (pthread_create(&thread[i], NULL, work, &task[i]) != 0)
            task[i].status = -1;
    }
    for (int i = 0; i < THREADS; i++) {
        if (task[i].status != -1)
            pthread_join(thread[i], NULL);
        faults += task[i].damaged + (task[i].status != CUDA_POOL_OK);
    }
    return faults;
}

/* Make a pool in Python: a new reference to its capsule, which keeps it. */
static PyObject *make_pool(void)
{
    PyObject *names = PyDict_New(), *done, *capsule;
    PyDict_SetItemString(names, "__builtins__", PyEval_GetBuiltins());
    done = PyRun_String("import cuda_pool\n"
                        "device = cuda_pool.sim.Device('64MiB')    # or 0: the first GPU\n"
                        "capsule = cuda_pool.Pool('32MiB', device=device).capsule\n",
                        Py_file_input, names, names);
    capsule = done == NULL ? NULL : PyDict_GetItemString(names, "capsule");
    Py_XINCREF(capsule);
    Py_XDECREF(done);
    Py_DECREF(names);
    return capsule;
}

static int use_pool(cuda_pool_t *pool)
{
    cuda_pool_stats_t stats;
    void *block = NULL;
    int faults, status = cuda_pool_alloc(pool, (size_t)1 << 40, NULL, &block);
    PyThreadState *state;

    printf("too much: %s\n", cuda_pool_status_name(status));
    state = PyEval_SaveThread(); /* the threads do not need the GIL; others may have it meanwhile */
    faults = run_threads(pool);
    PyEval_RestoreThread(state);

    stats.size = sizeof(stats);
    status = cuda_pool_get_stats(pool, &stats);
    printf("faults %d, allocations %llu, used %llu, %s\n", faults, (unsigned long long)stats.alloc_count,
           (unsigned long long)stats.used, cuda_pool_status_name(status));
    return faults != 0 || stats.used != 0 || status != CUDA_POOL_OK;
}

int main(void)
{
    PyObject *capsule;
    cuda_pool_t *pool;
    int failed = 1;

    Py_Initialize();
    capsule = import_cuda_pool() == 0 ? make_pool() : NULL;
    pool = capsule == NULL ? NULL : cuda_pool_from_object(capsule);
    if (pool != NULL)
        failed = use_pool(pool);
    else
        PyErr_Print();
    Py_XDECREF(capsule); /* the last reference: the pool goes */
    return Py_FinalizeEx() < 0 || failed;
}
