"""Build worker.pyx against the installed cuda_pool: python setup.py build_ext --inplace."""

from Cython.Build import cythonize
from setuptools import Extension, setup

import cuda_pool

setup(ext_modules=cythonize([Extension("worker", ["worker.pyx"], include_dirs=[cuda_pool.get_include()])]))
