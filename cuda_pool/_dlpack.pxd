"""DLPack 1.0, as far as an array of bytes needs it."""

from cuda_pool._driver cimport Device

# A capsule over `nbytes` bytes that holds a reference to `owner` until its consumer, or it itself, is gone.
cdef object dlpack_capsule(object owner, void* data, size_t nbytes, Device device, object max_version)
cdef object dlpack_device(Device device)
