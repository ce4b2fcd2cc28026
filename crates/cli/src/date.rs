//! Dates for a person to read.

use std::ffi::CStr;

/// Bytes of a date as text, and some.
const LONGEST: usize = 64;

/// The date and time of `seconds` since 1970 in this machine's time zone, as `2026-05-04 13:05:59
/// +0200`; `unknown` for 0, which stands for that.
pub(crate) fn local(seconds: u64) -> String {
    let unknown = || "unknown".to_owned();
    let Ok(seconds) = libc::time_t::try_from(seconds) else { return unknown() };
    if seconds == 0 {
        return unknown();
    }
    // SAFETY: zeros are a valid value, which the call fills in.
    let mut parts: libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: both places are ours, and alive for the call.
    if unsafe { libc::localtime_r(&seconds, &mut parts) }.is_null() {
        return unknown();
    }
    let mut text = [0_u8; LONGEST];
    let format: &CStr = c"%Y-%m-%d %H:%M:%S %z";
    // SAFETY: the buffer has the length that is said, and the format is a terminated string.
    let written =
        unsafe { libc::strftime(text.as_mut_ptr().cast(), LONGEST, format.as_ptr(), &parts) };
    String::from_utf8_lossy(&text[..written]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_date_has_a_day_a_time_and_a_zone() {
        let text = local(1_000_000_000);
        // Somewhere on earth.
        assert!(text.starts_with("2001-09-0"), "{text}");
        assert_eq!(text.len(), "2001-09-09 01:46:40 +0000".len());
        assert_eq!(local(0), "unknown");
    }
}
