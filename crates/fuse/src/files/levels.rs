//! Ioctls on open files and directories: how far their changes have come, and waiting for a level.
//!
//! | | request | argument | returns |
//! |---|---|---|---|
//! | [`ASK`] | `_IOR(0xF7, 1, uint32_t)` | receives the number of a [`Level`] | 0 |
//! | [`WAIT`] | `_IOW(0xF7, 2, uint32_t[2])` | the number of a level, and milliseconds | 1, or 0 when it has not come so far |
//!
//! A wait does what fsync(2) does first; the milliseconds bound the wait for replicas alone. The kernel cannot interrupt a request
//! that waits, so a wait for replicas ends after a second at the latest, whatever was asked for, and the program asks again. Both fail with `EINVAL` for an unknown level, and with `ENODATA` for replicas where none is connected. Other
//! filesystems answer `ENOTTY`.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::time::Duration;

use fuser::{Errno, INodeNo, ReplyIoctl, Request};
use thalweg_fs::{Ino, Level};

use super::adapter::Adapter;

/// The request that asks how far a file has come.
pub const ASK: u32 = 2 << 30 | 4 << 16 | 0xF7 << 8 | 1;
/// The request that waits for a level.
pub const WAIT: u32 = 1 << 30 | 8 << 16 | 0xF7 << 8 | 2;
/// The longest wait of one request.
const MOST: Duration = Duration::from_secs(1);

/// A wait as a request has it: a level, and a time.
fn decode(data: &[u8]) -> Option<(Level, Duration)> {
    let (level, millis) = data.split_at_checked(4)?;
    let level = Level::of_number(u32::from_ne_bytes(level.try_into().ok()?))?;
    let millis = u32::from_ne_bytes(millis.try_into().ok()?);
    Some((level, Duration::from_millis(millis.into()).min(MOST)))
}

impl Adapter {
    pub(super) fn control(
        &self,
        request: &Request,
        ino: INodeNo,
        command: u32,
        data: &[u8],
        reply: ReplyIoctl,
    ) {
        let ino = Ino(ino.0);
        match command {
            ASK => self.by(request).run(
                "ioctl",
                reply,
                move |served| async move { served.filesystem.level(ino).await },
                |reply, level| reply.ioctl(0, &level.number().to_ne_bytes()),
            ),
            WAIT => {
                let Some((level, within)) = decode(data) else {
                    return reply.error(Errno::EINVAL);
                };
                self.by(request).run(
                    "ioctl",
                    reply,
                    move |served| async move {
                        served.filesystem.wait_for(ino, level, within).await
                    },
                    |reply, has_come| reply.ioctl(i32::from(has_come), &[]),
                );
            }
            _ => reply.error(Errno::ENOTTY),
        }
    }
}

fn request(file: &File, command: u32, argument: &mut [u32; 2]) -> io::Result<i32> {
    // SAFETY: the kernel reads or writes no more than the bytes that the request's number says, which are at most 8.
    let done = unsafe { libc::ioctl(file.as_raw_fd(), command.into(), argument.as_mut_ptr()) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(done) }
}

/// Asks how far a file on a mount has come.
///
/// # Errors
/// `ENOTTY` for a file elsewhere; those of [`Filesystem::level`](thalweg_fs::Filesystem::level).
pub fn ask(file: &File) -> io::Result<Level> {
    let mut argument = [0; 2];
    request(file, ASK, &mut argument)?;
    let unknown = || io::Error::other("the mount is of a newer program");
    Level::of_number(argument[0]).ok_or_else(unknown)
}

/// Waits until a file on a mount has come to a level: for replicas at most `within`, and at most a second. Says whether it has.
///
/// # Errors
/// `ENOTTY` for a file elsewhere; those of [`Filesystem::wait_for`](thalweg_fs::Filesystem::wait_for).
pub fn wait(file: &File, level: Level, within: Duration) -> io::Result<bool> {
    let mut argument = [level.number(), within.min(MOST).as_millis() as u32];
    Ok(request(file, WAIT, &mut argument)? == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_names_a_level_and_a_bounded_time() {
        let of = |level: u32, millis: u32| [level.to_ne_bytes(), millis.to_ne_bytes()].concat();
        assert_eq!(decode(&of(3, 250)), Some((Level::Replicas, Duration::from_millis(250))));
        assert_eq!(decode(&of(1, 0)), Some((Level::Journal, Duration::ZERO)));
        assert_eq!(decode(&of(2, u32::MAX)), Some((Level::Server, MOST)));
        for wrong in
            [of(4, 0), of(u32::MAX, 0), of(2, 0)[..7].to_vec(), Vec::new(), [0; 9].to_vec()]
        {
            assert_eq!(decode(&wrong), None, "{wrong:?}");
        }
        assert_eq!((ASK, WAIT), (0x8004_F701, 0x4008_F702));
    }
}
