"""What can go wrong, by name. Every message says what was given, what is taken, and the next step."""


class WgattnError(Exception):
    """The root of every error that wgattn itself raises."""


class AdapterNotFoundError(WgattnError):
    """There is no usable WebGPU adapter; the message says what to install on this system."""


class DeviceLostError(WgattnError):
    """The device that holds an Array is gone. Its Arrays stay unusable; the next fresh call makes a new device."""


class OutOfDeviceMemoryError(WgattnError):
    """A buffer could not be allocated; the message gives the bytes requested and the device's limit."""


class UnsupportedError(WgattnError):
    """A kernel family, provider or option that was asked for cannot serve the call. Nothing else is tried instead."""


class ValidationError(WgattnError):
    """A result is further from the float64 reference than the contract allows."""
