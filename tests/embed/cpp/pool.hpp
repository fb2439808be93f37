// A pool for C++17: a shared handle, blocks that free themselves, and a std::pmr::memory_resource.
#pragma once

#include "cuda_pool_import.h"

#include <cstddef>
#include <memory>
#include <memory_resource>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>

namespace embed {

// What is thrown for a status: std::bad_alloc where there is no memory, else this.
class pool_error : public std::runtime_error {
public:
    explicit pool_error(int status) : std::runtime_error(cuda_pool_status_name(status)), status(status) {}
    const int status;
};

inline void require(int status)
{
    if (status == CUDA_POOL_ERROR_OUT_OF_MEMORY)
        throw std::bad_alloc();
    if (status != CUDA_POOL_OK)
        throw pool_error(status);
}

// A pool that was made in Python. Copies share it; it exists until the last one is gone.
class pool {
public:
    // To be called with the GIL held. The capsule is let go of by whichever thread has the last copy.
    explicit pool(PyObject *object)
    {
        PyObject *capsule = PyCapsule_CheckExact(object) ? (Py_INCREF(object), object)
                                                         : PyObject_GetAttrString(object, "capsule");
        handle_ = capsule == nullptr ? nullptr : cuda_pool_from_object(capsule);
        if (handle_ == nullptr) {
            Py_XDECREF(capsule);
            PyErr_Clear();
            throw std::invalid_argument("not a cuda_pool.Pool");
        }
        capsule_ = std::shared_ptr<PyObject>(capsule, let_go);
    }

    cuda_pool_t *get() const noexcept { return handle_; }

    void *allocate(std::size_t nbytes, std::size_t alignment = 256, void *stream = nullptr) const
    {
        void *ptr = nullptr;
        require(cuda_pool_alloc_aligned(handle_, nbytes, alignment, stream, &ptr));
        return ptr;
    }

private:
    static void let_go(PyObject *capsule)
    {
        if (!Py_IsInitialized())
            return; // the interpreter is gone, and the memory with the process
        PyGILState_STATE state = PyGILState_Ensure();
        Py_DECREF(capsule);
        PyGILState_Release(state);
    }

    cuda_pool_t *handle_ = nullptr;
    std::shared_ptr<PyObject> capsule_;
};

// A block of bytes, freed in the order of its stream.
class block {
public:
    block(embed::pool owner, std::size_t nbytes, void *stream = nullptr)
        : owner_(std::move(owner)), data_(owner_.allocate(nbytes, 256, stream)), nbytes_(nbytes), stream_(stream)
    {
    }
    block(block &&other) noexcept
        : owner_(other.owner_), data_(std::exchange(other.data_, nullptr)), nbytes_(std::exchange(other.nbytes_, 0)),
          stream_(other.stream_)
    {
    }
    block &operator=(block &&other) noexcept
    {
        std::swap(owner_, other.owner_);
        std::swap(data_, other.data_);
        std::swap(nbytes_, other.nbytes_);
        std::swap(stream_, other.stream_);
        return *this;
    }
    ~block() { cuda_pool_free_async(owner_.get(), data_, stream_); } // nothing to be done where that fails

    void *data() const noexcept { return data_; }
    std::size_t size() const noexcept { return nbytes_; }

private:
    embed::pool owner_;
    void *data_;
    std::size_t nbytes_;
    void *stream_;
};

// For containers. Those that touch their elements on the host need memory that the host can reach.
class pool_resource : public std::pmr::memory_resource {
public:
    explicit pool_resource(embed::pool owner) : owner_(std::move(owner)) {}

private:
    void *do_allocate(std::size_t nbytes, std::size_t alignment) override
    {
        return owner_.allocate(nbytes != 0 ? nbytes : 1, alignment); // never null
    }
    void do_deallocate(void *ptr, std::size_t, std::size_t) override { cuda_pool_free(owner_.get(), ptr); }
    bool do_is_equal(const std::pmr::memory_resource &other) const noexcept override
    {
        auto same = dynamic_cast<const pool_resource *>(&other);
        return same != nullptr && same->owner_.get() == owner_.get();
    }

    embed::pool owner_;
};

} // namespace embed
