/* An extension module of two files, for what the examples do not show. */
#include "cuda_pool_import.h"

#include <pthread.h>

int other_pairs(cuda_pool_t *pool, size_t nbytes); /* in other.c, which does not import cuda_pool itself */

static int status_before; /* of an allocation before the import */
static PyObject *kept;    /* never let go of */

struct task {
    cuda_pool_t *pool;
    size_t nbytes;
    int status;
};

static void *run(void *argument)
{
    struct task *task = (struct task *)argument;
    task->status = other_pairs(task->pool, task->nbytes);
    return NULL;
}

/* Wait for a thread that uses the pool, with the GIL held: it would never end if it needed that. */
static PyObject *pairs_under_gil(PyObject *self, PyObject *args)
{
    struct task task = {NULL, 0, -1};
    PyObject *object;
    Py_ssize_t nbytes;
    pthread_t thread;
    (void)self;
    if (!PyArg_ParseTuple(args, "On", &object, &nbytes) || (task.pool = cuda_pool_from_object(object)) == NULL)
        return NULL;
    task.nbytes = (size_t)nbytes;
    if (pthread_create(&thread, NULL, run, &task) == 0)
        pthread_join(thread, NULL);
    return PyLong_FromLong(task.status);
}

static PyObject *address_of(PyObject *self, PyObject *object)
{
    cuda_pool_t *pool = cuda_pool_from_object(object);
    (void)self;
    return pool == NULL ? NULL : PyLong_FromVoidPtr(pool);
}

static PyObject *keep(PyObject *self, PyObject *capsule)
{
    (void)self;
    Py_INCREF(capsule);
    kept = capsule;
    Py_RETURN_NONE;
}

static PyObject *before(PyObject *self, PyObject *unused)
{
    (void)self;
    (void)unused;
    return Py_BuildValue("is", status_before, cuda_pool_status_name(status_before));
}

static PyMethodDef methods[] = {
    {"pairs_under_gil", pairs_under_gil, METH_VARARGS, NULL},
    {"address_of", address_of, METH_O, NULL},
    {"keep", keep, METH_O, NULL},
    {"before", before, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "probe", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit_probe(void)
{
    void *ptr;
    status_before = cuda_pool_alloc(NULL, 1, NULL, &ptr);
    return import_cuda_pool() < 0 ? NULL : PyModule_Create(&module);
}
