//! Transfers by blocking system calls: on tokio's blocking threads if io_uring is refused, or on the caller's
//! thread.

use std::io;

use super::Failure;
use super::transfer::{Call, Step, Transfer};

/// Runs `transfer` to its end on a blocking thread, even if the caller's future is dropped.
pub(super) async fn run(transfer: Transfer) -> Result<Transfer, Failure> {
    match tokio::task::spawn_blocking(move || finish(transfer)).await {
        Ok(outcome) => outcome.map_err(Failure::Io),
        Err(_) => Err(Failure::Closed),
    }
}

/// Runs `transfer` to its end on this thread.
pub(super) fn finish(mut transfer: Transfer) -> io::Result<Transfer> {
    loop {
        let result = call(&mut transfer);
        match transfer.advance(result) {
            Step::Again => {}
            Step::Done(outcome) => return outcome.map(|()| transfer),
        }
    }
}

/// One system call: its result, or the negative error.
fn call(transfer: &mut Transfer) -> i64 {
    let (fd, call) = (transfer.fd(), transfer.call());
    let Ok(position) = libc::off_t::try_from(transfer.position()) else {
        return -i64::from(libc::EINVAL);
    };
    let segments = transfer.segments();
    let count = segments.len() as libc::c_int;
    // SAFETY: the transfer owns the descriptor, and the memory of the segments, for the whole call.
    let result = unsafe {
        match call {
            Call::Read => libc::preadv(fd, segments.as_ptr(), count, position) as i64,
            Call::Write => libc::pwritev(fd, segments.as_ptr(), count, position) as i64,
            Call::Sync => i64::from(libc::fdatasync(fd)),
        }
    };
    if result >= 0 {
        return result;
    }
    -i64::from(io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))
}
