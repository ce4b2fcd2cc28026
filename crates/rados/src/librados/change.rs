//! A [`Change`] as an operation of librados.

use std::ffi::{CString, c_char, c_int};
use std::ptr;

use bytes::Bytes;

use super::{c_string, check, sys};
use crate::ObjectError;
use crate::object::{Change, Comparison, Step};

/// An operation of librados, with everything that it refers to.
pub(super) struct WriteOperation {
    handle: sys::rados_write_op_t,
    /// Names that the operation refers to.
    _names: Vec<CString>,
    /// Buffers that the operation refers to.
    _buffers: Vec<Bytes>,
}

// SAFETY: an operation is used by one thread at a time.
unsafe impl Send for WriteOperation {}

impl Drop for WriteOperation {
    fn drop(&mut self) {
        // SAFETY: the handle was created in `new`, and is released once.
        unsafe { sys::rados_release_write_op(self.handle) };
    }
}

const CLASS: &std::ffi::CStr = c"lock";
const ASSERT_LOCKED: &std::ffi::CStr = c"assert_locked";

impl WriteOperation {
    /// The operation for `change` of `object`.
    pub(super) fn new(object: &str, change: &Change) -> Result<WriteOperation, ObjectError> {
        // SAFETY: the call takes nothing.
        let handle = unsafe { sys::rados_create_write_op() };
        let mut operation = WriteOperation { handle, _names: Vec::new(), _buffers: Vec::new() };
        for step in change.steps() {
            operation.add(object, step)?;
        }
        Ok(operation)
    }

    pub(super) fn handle(&self) -> sys::rados_write_op_t {
        self.handle
    }

    /// A name that lives as long as the operation.
    fn name(&mut self, object: &str, text: &str) -> Result<*const c_char, ObjectError> {
        let name = c_string(object, text)?;
        // The characters do not move with the vector.
        let start = name.as_ptr();
        self._names.push(name);
        Ok(start)
    }

    /// A buffer that lives as long as the operation.
    fn buffer(&mut self, bytes: &Bytes) -> (*const c_char, usize) {
        self._buffers.push(bytes.clone());
        (bytes.as_ptr().cast(), bytes.len())
    }

    fn add(&mut self, object: &str, step: &Step) -> Result<(), ObjectError> {
        let handle = self.handle;
        match step {
            Step::CreateNew => {
                let exclusive = sys::LIBRADOS_CREATE_EXCLUSIVE as c_int;
                // SAFETY: the handle is this operation's; the category is not used.
                unsafe { sys::rados_write_op_create(handle, exclusive, ptr::null()) };
            }
            Step::AssertExists => {
                // SAFETY: the handle is this operation's.
                unsafe { sys::rados_write_op_assert_exists(handle) };
            }
            Step::Compare { attribute, comparison, value } => {
                let name = self.name(object, attribute)?;
                let (start, len) = self.buffer(value);
                let comparison = match comparison {
                    Comparison::Equal => sys::LIBRADOS_CMPXATTR_OP_EQ,
                    Comparison::AtLeast => sys::LIBRADOS_CMPXATTR_OP_GTE,
                } as u8;
                // SAFETY: name and value live as long as the operation.
                unsafe {
                    sys::rados_write_op_cmpxattr(handle, name, comparison, start, len);
                }
            }
            Step::SetAttribute { attribute, value } => {
                let name = self.name(object, attribute)?;
                let (start, len) = self.buffer(value);
                // SAFETY: name and value live as long as the operation.
                unsafe { sys::rados_write_op_setxattr(handle, name, start, len) };
            }
            Step::AssertLocked { lock, cookie } => {
                let (start, len) = self.buffer(&assert_locked(lock, cookie));
                let (class, method) = (CLASS.as_ptr(), ASSERT_LOCKED.as_ptr());
                // SAFETY: the argument lives as long as the operation, and no result is asked for.
                unsafe {
                    sys::rados_write_op_exec(handle, class, method, start, len, ptr::null_mut());
                }
            }
            content => self.change_content(content),
        }
        Ok(())
    }

    fn change_content(&mut self, step: &Step) {
        let handle = self.handle;
        match step {
            Step::Write { offset, data } => {
                // A step for each buffer would be work for each of them on each replica.
                let joined = match &data[..] {
                    [bytes] => bytes.clone(),
                    many => many.concat().into(),
                };
                let (start, len) = self.buffer(&joined);
                // SAFETY: the buffer lives as long as the operation.
                unsafe { sys::rados_write_op_write(handle, start, len, *offset) };
            }
            Step::Replace { data } => {
                let (start, len) = self.buffer(data);
                // SAFETY: the buffer lives as long as the operation.
                unsafe { sys::rados_write_op_write_full(handle, start, len) };
            }
            // SAFETY: the handle is this operation's.
            Step::Zero { offset, len } => unsafe {
                sys::rados_write_op_zero(handle, *offset, *len);
            },
            // SAFETY: the handle is this operation's.
            Step::Truncate { size } => unsafe { sys::rados_write_op_truncate(handle, *size) },
            // SAFETY: the handle is this operation's.
            Step::Remove => unsafe { sys::rados_write_op_remove(handle) },
            _ => {}
        }
    }
}

/// The argument of the lock class's method `assert_locked`: its version and the oldest reader's, the length of what
/// follows, name, kind (1 is exclusive), cookie, tag.
fn assert_locked(lock: &str, cookie: &str) -> Bytes {
    let mut body = Vec::new();
    let text = |body: &mut Vec<u8>, text: &str| {
        body.extend((text.len() as u32).to_le_bytes());
        body.extend(text.as_bytes());
    };
    text(&mut body, lock);
    body.push(1);
    text(&mut body, cookie);
    text(&mut body, "");
    let mut argument = vec![1, 1];
    argument.extend((body.len() as u32).to_le_bytes());
    argument.extend(body);
    argument.into()
}

/// What a change returned about `object`.
pub(super) fn outcome(object: &str, returned: i32) -> Result<(), ObjectError> {
    match check(object, returned) {
        // The lock class answers so when another client has the lock, or none.
        Err(ObjectError::Locked { object }) => Err(ObjectError::Conflict { object }),
        outcome => outcome.map(drop),
    }
}
