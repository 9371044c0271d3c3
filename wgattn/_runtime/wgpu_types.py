"""The C types that wgpu-py asks cffi for, read at once.

cffi goes through all of wgpu-native's declarations for each name that it has not met, which takes some 13 ms: more than
half a second until there is a device, and a tenth of one at the first call with textures.
"""

from typing import Any

FUNCTIONS = (
    "void(WGPULogLevel, WGPUStringView, void *)",
    "void(WGPUDevice const *, WGPUDeviceLostReason, WGPUStringView, void *, void *)",
    "void(WGPUDevice const *, WGPUErrorType, WGPUStringView, void *, void *)",
    "void(WGPURequestDeviceStatus, WGPUDevice, WGPUStringView, void *, void *)",
    "void(WGPUMapAsyncStatus, WGPUStringView, void *, void *)",
)
ARRAYS = (
    *("char []", "uint8_t []", "uint32_t []"),
    *("WGPUAdapter[]", "WGPUBindGroupEntry[]", "WGPUBindGroupLayout[]", "WGPUBindGroupLayoutEntry[]"),
    *("WGPUCommandBuffer[]", "WGPUFeatureName[]"),
)
OTHERS = (
    *("intptr_t", "uintptr_t", "uint8_t *", "WGPUStringView *", "WGPUChainedStruct *", "WGPUChainedStruct * "),
    *("WGPUInstanceDescriptor *", "WGPUAdapterInfo *", "WGPULimits *", "WGPUNativeLimits *"),
    *("WGPUDeviceDescriptor *", "WGPUDeviceExtras *", "WGPUQueueDescriptor *", "WGPURequestDeviceCallbackInfo *"),
    *("WGPUDeviceLostCallbackInfo *", "WGPUUncapturedErrorCallbackInfo *"),
    *("WGPUShaderModuleDescriptor *", "WGPUShaderSourceWGSL *"),
    *("WGPUBufferBindingLayout *", "WGPUStorageTextureBindingLayout *"),
    *("WGPUBindGroupDescriptor *", "WGPUBindGroupEntry *"),
    *("WGPUBindGroupLayoutDescriptor *", "WGPUBindGroupLayoutEntry *"),
    *("WGPUPipelineLayoutDescriptor *", "WGPUComputePipelineDescriptor *", "WGPUComputeState *"),
    *("WGPUBufferDescriptor *", "WGPUBufferMapCallbackInfo *", "WGPUQuerySetDescriptor *"),
    *("WGPUCommandEncoderDescriptor *", "WGPUCommandBufferDescriptor *"),
    *("WGPUComputePassDescriptor *", "WGPUPassTimestampWrites *"),
    *("WGPUTextureDescriptor *", "WGPUTextureViewDescriptor *", "WGPUExtent3D *", "WGPUOrigin3D *"),
    *("WGPUTexelCopyBufferInfo *", "WGPUTexelCopyBufferLayout *", "WGPUTexelCopyTextureInfo *"),
)


def read_types(ffi: Any) -> None:
    """Have cffi know these types, as arguments of one function. Where wgpu-py's or cffi's insides are others, it reads
    each when it is asked for, as ever."""
    from cffi import CDefError, FFIError

    pointers = [f"{name[:-2]}(*)[]" for name in ARRAYS] + [f"{name} *" for name in OTHERS]
    functions = [name.replace("(", "(*)(", 1) for name in FUNCTIONS]
    signature = f"void(*)({', '.join(functions + pointers)})"
    try:
        read = ffi.typeof(signature)
    except (CDefError, FFIError):
        return
    known = getattr(ffi, "_parsed_types", None)  # by name: the type, and whether it is a function's
    if not isinstance(known, dict) or known.pop(signature, None) != (read, False):
        return
    told = [(kind, True) for kind in read.args[: len(FUNCTIONS)]]
    told += [(kind.item, False) for kind in read.args[len(FUNCTIONS) :]]
    for name, found in zip((*FUNCTIONS, *ARRAYS, *OTHERS), told, strict=True):
        known.setdefault(name, found)
