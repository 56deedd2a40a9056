//! Converts a failed NVML call for the answer.

use nvml_wrapper::error::NvmlError;

use crate::answer::CallError;

pub(crate) fn failed(call: &str, error: &NvmlError) -> CallError {
    CallError { call: call.to_owned(), code: code_of(error), text: error.to_string() }
}

/// The code that NVML returned; None for an error of the wrapper.
fn code_of(error: &NvmlError) -> Option<u32> {
    use NvmlError::{
        CorruptedInfoROM, DriverNotLoaded, FunctionNotFound, GpuLost, InUse, InsufficientMemory,
        InsufficientPower, InsufficientSize, InvalidArg, IrqIssue, LibRmVersionMismatch,
        LibraryNotFound, NoData, NoPermission, NotFound, NotSupported, OperatingSystem,
        ResetRequired, Timeout, UnexpectedVariant, Uninitialized, Unknown,
    };
    Some(match error {
        Uninitialized => 1,
        InvalidArg => 2,
        NotSupported => 3,
        NoPermission => 4,
        NotFound => 6,
        InsufficientSize(_) => 7,
        InsufficientPower => 8,
        DriverNotLoaded => 9,
        Timeout => 10,
        IrqIssue => 11,
        LibraryNotFound => 12,
        FunctionNotFound => 13,
        CorruptedInfoROM => 14,
        GpuLost => 15,
        ResetRequired => 16,
        OperatingSystem => 17,
        LibRmVersionMismatch => 18,
        InUse => 19,
        InsufficientMemory => 20,
        NoData => 21,
        Unknown => 999,
        UnexpectedVariant(code) => *code,
        _ => return None,
    })
}
