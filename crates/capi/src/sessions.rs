//! Sessions for C: reads that may be old, with guarantees.

use std::borrow::Cow;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::io::Write;

use bytes::Bytes;
use thalweg_client::{SessionCell, SessionError, Volume};
use thalweg_store::block::{Lba, Version};
use thalweg_store::stale::{Got, Session};

use super::raw::{self, tw_raw};
use super::stores::{self, bytes, copy_value, tw_kv};
use super::versions::place;
use super::{content, copy_out, len, named, tw_volume};
use crate::failure::{Failure, call};

/// Bytes that the text of any session takes, with the zero at its end.
pub const TW_SESSION_TEXT: usize = 137;
/// Bytes that the text of any guarantee takes, with the zero at its end.
pub const TW_GUARANTEE_TEXT: usize = 144;

/// What a client has read and written, and what it needs of its next reads. It belongs to one thread at a time: calls of
/// another one fail with -EBUSY while a call uses it. It is of no volume, and can be used with a replica too.
pub struct tw_session {
    session: SessionCell,
}

/// What a read for a session has got. Versions are those that tw_version has in `version`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct tw_got {
    /// The oldest version that has the content.
    pub oldest: u64,
    /// The newest one that is known to have it. The versions in between have it too.
    pub newest: u64,
    /// How long ago it was replaced, in nanoseconds: at most. 0 when it is the newest, -1 when that is not known.
    pub age_ns: i64,
    /// The guarantee that it meets, as in "read-my-writes,bounded=5s".
    pub guarantee: [c_char; TW_GUARANTEE_TEXT],
}

impl From<SessionError> for Failure {
    fn from(error: SessionError) -> Failure {
        let number = match &error {
            SessionError::Busy => libc::EBUSY,
            SessionError::Guarantee(_) | SessionError::Token(_) => libc::EINVAL,
        };
        Failure::new(number, error.to_string())
    }
}

impl tw_got {
    fn of<T>(session: &Session, got: &Got<T>) -> Result<tw_got, Failure> {
        let mut text = [0; TW_GUARANTEE_TEXT];
        write!(&mut text[..TW_GUARANTEE_TEXT - 1], "{}", session.guarantee())
            .map_err(|_| Failure::invalid("the text of the guarantee is too long"))?;
        let age = got.age.map(|age| i64::try_from(age.as_nanos()).unwrap_or(i64::MAX));
        Ok(tw_got {
            oldest: got.range.low.0,
            newest: got.range.up.0,
            age_ns: age.unwrap_or(-1),
            guarantee: text.map(|byte| byte as c_char),
        })
    }
}

/// The session that a caller named.
///
/// # Safety
/// `session` is null or came from [`tw_session_new`] or [`tw_session_resume`] and was not closed.
unsafe fn used<'a>(session: *const tw_session) -> Result<&'a SessionCell, Failure> {
    // SAFETY: as the caller says.
    let session = unsafe { session.as_ref() };
    let session = session.ok_or_else(|| Failure::invalid("the session is a null pointer"))?;
    Ok(&session.session)
}

/// A text that a caller gives.
///
/// # Safety
/// `text` is null or a string that ends with a zero.
unsafe fn given<'a>(text: *const c_char) -> Result<Cow<'a, str>, Failure> {
    if text.is_null() {
        return Err(Failure::invalid("the guarantee or the text is a null pointer"));
    }
    // SAFETY: as the caller says.
    Ok(unsafe { CStr::from_ptr(text) }.to_string_lossy())
}

fn made(make: impl FnOnce() -> Result<SessionCell, Failure>) -> *mut tw_session {
    let mut made = std::ptr::null_mut();
    call(|| {
        made = Box::into_raw(Box::new(tw_session { session: make()? }));
        Ok(0)
    });
    made
}

/// Makes a session with a guarantee, as in "read-my-writes,bounded=5s": one or several of strong, eventual,
/// read-my-writes, monotonic-reads, monotonic-writes, writes-follow-reads, causal, bounded=TIME, updates=NUMBER, or at=VERSION
/// alone. Null when there is no such guarantee or it contradicts itself; tw_errno() is EINVAL then, and tw_error() says
/// why.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_session_new(guarantee: *const c_char) -> *mut tw_session {
    // SAFETY: as the caller says.
    made(|| Ok(SessionCell::new(&unsafe { given(guarantee) }?)?))
}

/// Makes a session that goes on where another one was when it was saved as `text`, in this process or elsewhere. Null as
/// tw_session_new(), and when the text is of no session.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_session_resume(
    guarantee: *const c_char,
    text: *const c_char,
) -> *mut tw_session {
    // SAFETY: as the caller says.
    made(|| unsafe { Ok(SessionCell::resumed(&given(guarantee)?, &given(text)?)?) })
}

/// Saves a session as `text`, which has TW_SESSION_TEXT bytes, for tw_session_resume(). The volume makes durable what
/// the session has seen of it: a crash does not take that back.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_session_save(
    volume: *const tw_volume,
    session: *const tw_session,
    text: *mut c_char,
) -> c_int {
    call(|| {
        // SAFETY: as the caller says.
        let (volume, session, text) = unsafe {
            (named(volume)?, used(session)?, place(text.cast::<[u8; TW_SESSION_TEXT]>())?)
        };
        let token = volume.save_session(&*session.lock()?)?;
        write!(&mut text[..], "{token}\0")
            .map_err(|_| Failure::invalid("the text of the session is too long"))?;
        Ok(0)
    })
}

/// Closes a session. Null is ignored. No thread may be in a call with it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_session_close(session: *mut tw_session) {
    if !session.is_null() {
        // SAFETY: it came from one of the calls above, and no other call uses it.
        drop(unsafe { Box::from_raw(session) });
    }
}

/// Reads one block for a session.
///
/// # Safety
/// `buffer` is null or has room for a block; `session` and `got` are as in the calls below.
unsafe fn read<E: Into<Failure>>(
    session: *const tw_session,
    buffer: *mut c_void,
    got: *mut tw_got,
    read: impl FnOnce(&mut Session) -> Result<Got<Bytes>, E>,
) -> Result<c_int, Failure> {
    len(buffer, 1)?;
    // SAFETY: as the caller says.
    let (session, place) = unsafe { (used(session)?, place(got)?) };
    let mut session = session.lock()?;
    let got = read(&mut session).map_err(Into::into)?;
    *place = tw_got::of(&session, &got)?;
    // SAFETY: the buffer has room for a block.
    unsafe { copy_out(&[got.value], 1, buffer) };
    Ok(0)
}

/// Writes for a session, and stores the version.
///
/// # Safety
/// `session` and `version` are as in the calls below.
unsafe fn write<E: Into<Failure>>(
    session: *const tw_session,
    version: *mut u64,
    write: impl FnOnce(&mut Session) -> Result<Version, E>,
) -> Result<c_int, Failure> {
    // SAFETY: as the caller says.
    let (session, place) = unsafe { (used(session)?, place(version)?) };
    let mut session = session.lock()?;
    *place = write(&mut session).map_err(Into::into)?.0;
    Ok(0)
}

/// Reads a block of the volume into `buffer`, which has TW_BLOCK_SIZE bytes: the cheapest content that the session's
/// guarantee allows. `got` becomes what that is. The read is a transaction of its own: inside of a transaction of this
/// thread it fails with -EINVAL, as all calls for sessions. Where this volume cannot give the guarantee it fails with
/// -ENODATA, -EREMOTE, -ETIME or -EREMCHG.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_read_for(
    volume: *const tw_volume,
    session: *const tw_session,
    block: u64,
    buffer: *mut c_void,
    got: *mut tw_got,
) -> c_int {
    call(|| {
        // SAFETY: as the caller says.
        unsafe {
            let volume = named(volume)?;
            read(session, buffer, got, |it| volume.read_for(it, Lba(block)))
        }
    })
}

fn write_block(
    volume: &Volume,
    session: &mut Session,
    block: u64,
    content: Option<&[u8]>,
) -> Result<Version, Failure> {
    Ok(volume.write_for(session, Lba(block), content)?)
}

/// Writes a block for a session, from `buffer`, which has TW_BLOCK_SIZE bytes; durable when the call returns. `version`
/// becomes the version of the write. Fails with -EINVAL on a volume with partitions, as tw_write(), and with -ENODATA when
/// the guarantee orders it after something that the volume does not have yet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_write_for(
    volume: *const tw_volume,
    session: *const tw_session,
    block: u64,
    buffer: *const c_void,
    version: *mut u64,
) -> c_int {
    call(|| {
        // SAFETY: as the caller says.
        unsafe {
            let (volume, content) = (named(volume)?, content(buffer, 1)?);
            write(session, version, |it| write_block(volume, it, block, Some(content)))
        }
    })
}

/// Discards a block for a session, as tw_write_for().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_discard_for(
    volume: *const tw_volume,
    session: *const tw_session,
    block: u64,
    version: *mut u64,
) -> c_int {
    call(|| {
        // SAFETY: as the caller says.
        unsafe {
            let volume = named(volume)?;
            write(session, version, |it| write_block(volume, it, block, None))
        }
    })
}

/// As tw_read_for(), of a raw partition.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_raw_read_for(
    raw: *const tw_raw,
    session: *const tw_session,
    block: u64,
    buffer: *mut c_void,
    got: *mut tw_got,
) -> c_int {
    call(|| {
        // SAFETY: as the caller says.
        unsafe {
            let (volume, raw) = raw::opened(raw)?;
            read(session, buffer, got, |it| volume.read_raw_for(it, raw, block))
        }
    })
}

/// As tw_write_for(), of a raw partition.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_raw_write_for(
    raw: *const tw_raw,
    session: *const tw_session,
    block: u64,
    buffer: *const c_void,
    version: *mut u64,
) -> c_int {
    call(|| {
        // SAFETY: as the caller says.
        unsafe {
            let ((volume, raw), content) = (raw::opened(raw)?, content(buffer, 1)?);
            write(session, version, |it| volume.write_raw_for(it, raw, block, Some(content)))
        }
    })
}

/// As tw_discard_for(), of a raw partition.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_raw_discard_for(
    raw: *const tw_raw,
    session: *const tw_session,
    block: u64,
    version: *mut u64,
) -> c_int {
    call(|| {
        // SAFETY: as the caller says.
        unsafe {
            let (volume, raw) = raw::opened(raw)?;
            write(session, version, |it| volume.write_raw_for(it, raw, block, None))
        }
    })
}

/// Gets the value of a key for a session, as tw_kv_get(): 1, or 0 when the key is absent. `got` becomes what that is, as in
/// tw_read_for().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_kv_get_for(
    kv: *const tw_kv,
    session: *const tw_session,
    key: *const c_void,
    key_len: usize,
    value: *mut c_void,
    value_len: *mut usize,
    got: *mut tw_got,
) -> c_int {
    call(|| {
        // SAFETY: as the caller says.
        unsafe {
            let ((volume, store), key) = (stores::opened(kv)?, bytes(key, key_len)?);
            let (session, place) = (used(session)?, place(got)?);
            copy_value(value, value_len, || {
                let mut session = session.lock()?;
                let got = volume.get_for(&mut session, store, key.unwrap_or_default())?;
                *place = tw_got::of(&session, &got)?;
                Ok(got.value)
            })
        }
    })
}

/// Sets the value of a key for a session; durable when the call returns. `version` becomes the version of the write, as in
/// tw_write_for().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_kv_put_for(
    kv: *const tw_kv,
    session: *const tw_session,
    key: *const c_void,
    key_len: usize,
    value: *const c_void,
    value_len: usize,
    version: *mut u64,
) -> c_int {
    call(|| {
        // SAFETY: as the caller says.
        unsafe {
            let (volume, store) = stores::opened(kv)?;
            let (key, value) = (bytes(key, key_len)?, bytes(value, value_len)?);
            let (key, value) = (key.unwrap_or_default(), value.unwrap_or_default());
            write(session, version, |it| volume.put_for(it, store, key, value))
        }
    })
}
