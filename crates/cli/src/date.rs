//! Dates for a person to read.

use std::ffi::CStr;

/// Size of the buffer for a date as text, with a margin.
const LONGEST: usize = 64;

/// `seconds` since 1970 as date and time in this machine's time zone, for example `2026-05-04 13:05:59
/// +0200`; 0 means `unknown`.
pub(crate) fn local(seconds: u64) -> String {
    let unknown = || "unknown".to_owned();
    let Ok(seconds) = libc::time_t::try_from(seconds) else { return unknown() };
    if seconds == 0 {
        return unknown();
    }
    // SAFETY: all zeros are a valid value, which the call overwrites.
    let mut parts: libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers are valid for the call.
    if unsafe { libc::localtime_r(&seconds, &mut parts) }.is_null() {
        return unknown();
    }
    let mut text = [0_u8; LONGEST];
    let format: &CStr = c"%Y-%m-%d %H:%M:%S %z";
    // SAFETY: the buffer has the length that is passed, and the format is a terminated string.
    let written =
        unsafe { libc::strftime(text.as_mut_ptr().cast(), LONGEST, format.as_ptr(), &parts) };
    String::from_utf8_lossy(&text[..written]).into_owned()
}

/// Milliseconds in a unit that a person reads.
pub(crate) fn span(millis: u64) -> String {
    let seconds = millis / 1000;
    match seconds {
        0 => format!("{millis} ms"),
        1..600 => format!("{}.{} s", seconds, millis % 1000 / 100),
        600..36_000 => format!("{} min", seconds / 60),
        _ => format!("{} h", seconds / 3600),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_date_has_a_day_a_time_and_a_zone() {
        let text = local(1_000_000_000);
        // In the time zone furthest west or east.
        assert!(text.starts_with("2001-09-0"), "{text}");
        assert_eq!(text.len(), "2001-09-09 01:46:40 +0000".len());
        assert_eq!(local(0), "unknown");
    }

    #[test]
    fn spans_have_units() {
        let texts = [0, 999, 1_550, 599_999, 600_000, 36_000_000].map(span);
        assert_eq!(texts, ["0 ms", "999 ms", "1.5 s", "599.9 s", "10 min", "10 h"]);
    }
}
