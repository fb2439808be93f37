/* How a program that has Python in it, or is a module of it, gets at cuda_pool and its pools.
 *
 * These functions are called with the GIL held.
 */
#ifndef CUDA_POOL_IMPORT_H
#define CUDA_POOL_IMPORT_H

#include <Python.h>

#include "cuda_pool.h"

/* Import the package and let the functions of cuda_pool.h be its own; once for all translation units of a program or
 * shared object. 0, or -1 with an ImportError (or what the package's import raised) set. */
static inline int import_cuda_pool(void)
{
    const cuda_pool_api_t *api = (const cuda_pool_api_t *)PyCapsule_Import("cuda_pool.capi.table", 0);
    if (api == NULL) {
        if (PyErr_ExceptionMatches(PyExc_AttributeError))
            PyErr_SetString(PyExc_ImportError, "the installed cuda_pool has no C interface: install a later one");
        return -1;
    }
    if (cuda_pool_use(api) == CUDA_POOL_OK)
        return 0;
    if (api->abi != CUDA_POOL_ABI)
        PyErr_Format(PyExc_ImportError,
                     "the installed cuda_pool has C interface %u, and this was compiled for %u: compile it again "
                     "against the installed version, or install one that has interface %u",
                     (unsigned)api->abi, (unsigned)CUDA_POOL_ABI, (unsigned)CUDA_POOL_ABI);
    else
        PyErr_SetString(PyExc_ImportError, "the installed cuda_pool is older than the one that this was compiled for, "
                                           "and lacks functions of it: install that version or a later one");
    return -1;
}

/* The pool of a cuda_pool.Pool, or of a capsule of one: valid as long as the object. NULL, with a TypeError set, for
 * anything else. To keep the pool, keep a reference to pool.capsule. */
static inline cuda_pool_t *cuda_pool_from_object(PyObject *object)
{
    PyObject *capsule = object;
    cuda_pool_t *pool = NULL;
    if (PyCapsule_CheckExact(object))
        Py_INCREF(capsule);
    else
        capsule = PyObject_GetAttrString(object, "capsule");
    if (capsule != NULL && PyCapsule_IsValid(capsule, "cuda_pool.pool"))
        pool = (cuda_pool_t *)PyCapsule_GetPointer(capsule, "cuda_pool.pool");
    Py_XDECREF(capsule);
    if (pool == NULL)
        PyErr_Format(PyExc_TypeError, "expected a cuda_pool.Pool or its capsule, got %.200s", Py_TYPE(object)->tp_name);
    return pool;
}

#endif
