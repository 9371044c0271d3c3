"""What can go wrong, by name. Every message says what was given, what is taken, and the next step."""


class WgattnError(Exception):
    """The root of every error that wgattn itself raises."""


class AdapterNotFoundError(WgattnError):
    """No WebGPU adapter can be used; the message names what to install on this system."""


class DeviceLostError(WgattnError):
    """The device that holds an Array is gone. Arrays of it stay dead; the next fresh call makes a new device."""


class OutOfDeviceMemoryError(WgattnError):
    """A buffer could not be had: the message gives the bytes asked for and the device's limit."""


class UnsupportedError(WgattnError):
    """A named variant, provider or option cannot serve the call; nothing else is tried in its place."""


class ValidationError(WgattnError):
    """A result is further from the float64 reference than the contract allows."""
