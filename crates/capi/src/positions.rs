//! Positions for C: names of states on every machine, and waiting for them.

use std::ffi::{CStr, c_char, c_int};
use std::io::Write;
use std::time::Duration;

use thalweg_store::block::Position;

use super::versions::place;
use super::{named, tw_volume};
use crate::failure::{Failure, call};

/// Bytes that the text of any position takes, with the zero at its end.
pub const TW_POSITION_TEXT: usize = 95;

/// Writes the position of a volume, VOLUME:TIMELINE:VERSION, into `text`, which has TW_POSITION_TEXT bytes: it names the
/// volume's newest state, on this machine and on those of its replicas. Fails with -ENODATA when the volume has had no
/// replica.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_position(volume: *const tw_volume, text: *mut c_char) -> c_int {
    call(|| {
        // SAFETY: as the caller says.
        let (volume, text) =
            unsafe { (named(volume)?, place(text.cast::<[u8; TW_POSITION_TEXT]>())?) };
        let nameless = || Failure::new(libc::ENODATA, "the volume has no replicas".to_owned());
        let position = volume.position()?.ok_or_else(nameless)?;
        write!(&mut text[..], "{position}\0")
            .map_err(|_| Failure::invalid("the text of the position is too long"))?;
        Ok(0)
    })
}

/// Waits until a volume, which may be a replica, has durably reached a position: 1, or 0 when it has not within
/// `milliseconds`. With a negative number it waits for any time. Fails with -EINVAL for a text that is no position, and when
/// the volume never reaches it: the position is of another volume, or of one that has gone another way.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_wait(
    volume: *const tw_volume,
    position: *const c_char,
    milliseconds: i64,
) -> c_int {
    call(|| {
        if position.is_null() {
            return Err(Failure::invalid("the position is a null pointer"));
        }
        // SAFETY: as the caller says.
        let (volume, text) = unsafe { (named(volume)?, CStr::from_ptr(position)) };
        let position: Result<Position, _> = text.to_string_lossy().parse();
        let position = position.map_err(|error| Failure::invalid(&error.to_string()))?;
        let within = u64::try_from(milliseconds).ok().map(Duration::from_millis);
        Ok(c_int::from(volume.reached(position, within)?))
    })
}
