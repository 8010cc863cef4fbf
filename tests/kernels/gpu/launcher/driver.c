/* CUDA's driver for a GPU that is not there: whatever is launched is handed to a function. */

#include <stdint.h>

#include "cuda.h"

typedef int (*launched)(const unsigned *grid, const unsigned *block, unsigned shared, void *function,
                        void **parameters);

static launched on_launch;
static uintptr_t last = 0x1000;

void play(launched function) { on_launch = function; }

CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **parameters,
                          void **extra) {
  unsigned grid[] = {config->gridDimX, config->gridDimY, config->gridDimZ};
  unsigned block[] = {config->blockDimX, config->blockDimY, config->blockDimZ};
  int wrong = on_launch(grid, block, config->sharedMemBytes, function, parameters);
  return wrong ? CUDA_ERROR_LAUNCH_FAILED : CUDA_SUCCESS;
}

/* An address is what it is on the host. */
CUresult cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr pointer) {
  *(CUdeviceptr *)data = pointer;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
  switch (attribute) {
  case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
    *value = 9;
    break;
  case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
    *value = 0;
    break;
  case CU_DEVICE_ATTRIBUTE_WARP_SIZE:
    *value = 32;
    break;
  case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK:
    *value = 48 << 10;
    break;
  case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
    *value = 227 << 10;
    break;
  case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR:
    *value = 228 << 10;
    break;
  default:
    *value = 1024;
  }
  return CUDA_SUCCESS;
}

/* Only the number of threads that a function may have is looked at; it has no registers to spill. */
CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction function) {
  *value = attribute == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024 : 0;
  return CUDA_SUCCESS;
}

CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
  *function = (CUfunction)(last += 16);
  return CUDA_SUCCESS;
}

/* What Triton asks for besides, and to which any answer will do. */
#define ANSWER(name, parameters, statement)                                                        \
  CUresult name parameters {                                                                       \
    statement;                                                                                     \
    return CUDA_SUCCESS;                                                                           \
  }

ANSWER(cuInit, (unsigned flags), )
ANSWER(cuGetErrorString, (CUresult error, const char **text), *text = "see what was printed")
ANSWER(cuDriverGetVersion, (int *version), *version = 13000)
ANSWER(cuDeviceGet, (CUdevice *device, int ordinal), *device = ordinal)
ANSWER(cuDeviceGetCount, (int *count), *count = 1)
ANSWER(cuDevicePrimaryCtxRetain, (CUcontext *context, CUdevice device), *context = (CUcontext)16)
ANSWER(cuCtxGetCurrent, (CUcontext *context), *context = (CUcontext)16)
ANSWER(cuCtxSetCurrent, (CUcontext context), )
ANSWER(cuCtxGetDevice, (CUdevice *device), *device = 0)
ANSWER(cuCtxGetLimit, (size_t *value, CUlimit limit), *value = 0)
ANSWER(cuCtxSetLimit, (CUlimit limit, size_t value), )
ANSWER(cuModuleLoadData, (CUmodule *module, const void *image), *module = (CUmodule)16)
ANSWER(cuModuleUnload, (CUmodule module), )
ANSWER(cuFuncSetAttribute, (CUfunction function, CUfunction_attribute attribute, int value), )
ANSWER(cuFuncSetCacheConfig, (CUfunction function, CUfunc_cache config), )
ANSWER(cuOccupancyMaxActiveClusters,
       (int *count, CUfunction function, const CUlaunchConfig *config), *count = 1)
ANSWER(cuStreamIsCapturing, (CUstream stream, CUstreamCaptureStatus *status),
       *status = CU_STREAM_CAPTURE_STATUS_NONE)
