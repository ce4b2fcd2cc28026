//! The functions of a library.

use std::ffi::{c_char, c_int, c_uchar, c_void};

/// A pointer to a type that only the library knows.
pub(super) type Opaque = *mut c_void;
pub(super) type Make = unsafe extern "C" fn() -> Opaque;
pub(super) type Free = unsafe extern "C" fn(Opaque);
pub(super) type SetFlag = unsafe extern "C" fn(Opaque, c_uchar);
pub(super) type SetInt = unsafe extern "C" fn(Opaque, c_int);
type SetSize = unsafe extern "C" fn(Opaque, usize);

/// The functions about a cache of blocks.
pub(super) struct CacheApi {
    /// Makes one of so many bytes.
    pub(super) make: unsafe extern "C" fn(usize) -> Opaque,
    pub(super) free: Free,
    pub(super) set: unsafe extern "C" fn(Opaque, Opaque),
}

/// The functions of a library.
pub(crate) struct Api {
    pub(super) options: Make,
    pub(super) free_options: Free,
    pub(super) set_create: SetFlag,
    pub(super) set_compression: SetInt,
    pub(super) set_write_buffer: SetSize,
    /// `None` where a cache belongs to settings that nothing here makes.
    pub(super) cache: Option<CacheApi>,
    pub(super) write_options: Make,
    pub(super) free_write_options: Free,
    pub(super) set_sync: SetFlag,
    pub(super) read_options: Make,
    pub(super) free_read_options: Free,
    pub(super) open: unsafe fn(Opaque, *const c_char, *mut *mut c_char) -> Opaque,
    pub(super) close: Free,
    pub(super) put: unsafe extern "C" fn(
        Opaque,
        Opaque,
        *const c_char,
        usize,
        *const c_char,
        usize,
        *mut *mut c_char,
    ),
    pub(super) get: unsafe extern "C" fn(
        Opaque,
        Opaque,
        *const c_char,
        usize,
        *mut usize,
        *mut *mut c_char,
    ) -> *mut c_char,
    #[cfg_attr(not(feature = "rivals"), allow(dead_code))]
    pub(super) delete: unsafe extern "C" fn(Opaque, Opaque, *const c_char, usize, *mut *mut c_char),
    pub(super) write: unsafe extern "C" fn(Opaque, Opaque, Opaque, *mut *mut c_char),
    pub(super) batch: Make,
    pub(super) free_batch: Free,
    pub(super) batch_put: unsafe extern "C" fn(Opaque, *const c_char, usize, *const c_char, usize),
    pub(super) free: Free,
}

macro_rules! declare {
    ($library:literal, $($name:ident($($argument:ty),*) $(-> $answer:ty)?;)*) => {
        #[link(name = $library)]
        unsafe extern "C" {
            $(fn $name($(_: $argument),*) $(-> $answer)?;)*
        }
    };
}

pub(super) use declare;
