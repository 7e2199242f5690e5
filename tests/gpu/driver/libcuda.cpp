// A CUDA driver without a GPU, for tests of cuDNN's plans. cuDNN compiles some kernels when it makes a plan, and loads
// them: here that does nothing, and every other call reports that there is no device. These are all functions that
// cuDNN looks up.

namespace {

constexpr int kSuccess = 0, kNoDevice = 100;

// Never dereferenced.
int load(void** object) {
  static char loaded;
  *object = &loaded;
  return kSuccess;
}

}  // namespace

extern "C" {

#pragma GCC diagnostic ignored "-Wmissing-declarations"

int cuLibraryLoadData(void** library) {
  return load(library);
}
int cuLibraryGetKernel(void** kernel) {
  return load(kernel);
}
int cuKernelSetAttribute() {
  return kSuccess;
}
int cuLibraryUnload() {
  return kSuccess;
}

#define ANNULUS_NO_DEVICE(name) \
  int name() {                  \
    return kNoDevice;           \
  }
ANNULUS_NO_DEVICE(cuCtxGetCurrent)
ANNULUS_NO_DEVICE(cuCtxGetDevice)
ANNULUS_NO_DEVICE(cuCtxGetLimit)
ANNULUS_NO_DEVICE(cuCtxPopCurrent)
ANNULUS_NO_DEVICE(cuCtxPushCurrent)
ANNULUS_NO_DEVICE(cuDeviceGet)
ANNULUS_NO_DEVICE(cuDeviceGetAttribute)
ANNULUS_NO_DEVICE(cuDeviceGetCount)
ANNULUS_NO_DEVICE(cuDevicePrimaryCtxRelease)
ANNULUS_NO_DEVICE(cuDevicePrimaryCtxReset)
ANNULUS_NO_DEVICE(cuDevicePrimaryCtxRetain)
ANNULUS_NO_DEVICE(cuDriverGetVersion)
ANNULUS_NO_DEVICE(cuFuncGetAttribute)
ANNULUS_NO_DEVICE(cuFuncSetAttribute)
ANNULUS_NO_DEVICE(cuGetErrorName)
ANNULUS_NO_DEVICE(cuGetErrorString)
ANNULUS_NO_DEVICE(cuInit)
ANNULUS_NO_DEVICE(cuKernelGetAttribute)
ANNULUS_NO_DEVICE(cuLaunchCooperativeKernel)
ANNULUS_NO_DEVICE(cuLaunchKernel)
ANNULUS_NO_DEVICE(cuLaunchKernelEx)
ANNULUS_NO_DEVICE(cuLibraryLoadFromFile)
ANNULUS_NO_DEVICE(cuLinkAddData)
ANNULUS_NO_DEVICE(cuLinkAddData_v2)
ANNULUS_NO_DEVICE(cuLinkAddFile_v2)
ANNULUS_NO_DEVICE(cuLinkComplete)
ANNULUS_NO_DEVICE(cuLinkCreate)
ANNULUS_NO_DEVICE(cuLinkCreate_v2)
ANNULUS_NO_DEVICE(cuLinkDestroy)
ANNULUS_NO_DEVICE(cuMemcpyDtoH_v2)
ANNULUS_NO_DEVICE(cuModuleGetFunction)
ANNULUS_NO_DEVICE(cuModuleGetGlobal_v2)
ANNULUS_NO_DEVICE(cuModuleLoadData)
ANNULUS_NO_DEVICE(cuModuleLoadDataEx)
ANNULUS_NO_DEVICE(cuModuleLoadFatBinary)
ANNULUS_NO_DEVICE(cuModuleUnload)
ANNULUS_NO_DEVICE(cuOccupancyMaxActiveBlocksPerMultiprocessor)
ANNULUS_NO_DEVICE(cuOccupancyMaxPotentialClusterSize)
ANNULUS_NO_DEVICE(cuStreamGetCtx)
ANNULUS_NO_DEVICE(cuStreamSynchronize)
ANNULUS_NO_DEVICE(cuTensorMapEncodeTiled)
#undef ANNULUS_NO_DEVICE
}
