//! Sizes as users write them.

use std::fmt;
use std::str::FromStr;

/// A size in bytes, written `4096`, `64k`, `512M`, `10G` or `1.5TiB`; units are powers of 1024.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Size(pub(crate) u64);

const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Size, String> {
        let wrong =
            || format!("{text:?} is not a size; write bytes, or a unit: 64k, 512M, 10G, 1.5T");
        let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, unit) = text.split_at(split);
        let unit = unit.trim().to_ascii_lowercase();
        let power = UNITS.iter().position(|known| {
            let known = known.to_ascii_lowercase();
            unit == known || unit == known[..1] || unit == known.replace('i', "")
        });
        let power = if unit.is_empty() { 0 } else { power.ok_or_else(wrong)? };
        let scale = 1u64 << (10 * power);
        if let Ok(whole) = number.parse::<u64>() {
            return whole.checked_mul(scale).map(Size).ok_or_else(wrong);
        }
        let fraction: f64 = number.parse().map_err(|_| wrong())?;
        let bytes = fraction * scale as f64;
        if power == 0 || !(0.0..u64::MAX as f64).contains(&bytes) {
            return Err(wrong());
        }
        Ok(Size(bytes as u64))
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let power = (self.0.max(1).ilog2() / 10) as usize;
        let value = self.0 as f64 / (1u64 << (10 * power)) as f64;
        let digits = if power == 0 || value.fract() == 0.0 { 0 } else { 1 };
        write!(f, "{value:.digits$} {}", UNITS[power])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Option<u64> {
        text.parse::<Size>().ok().map(|size| size.0)
    }

    #[test]
    fn sizes_are_read_as_written() {
        assert_eq!(parsed("4096"), Some(4096));
        assert_eq!(parsed("64k"), Some(64 << 10));
        assert_eq!(parsed("512M"), Some(512 << 20));
        assert_eq!(parsed("10GiB"), Some(10 << 30));
        assert_eq!(parsed("10gb"), Some(10 << 30));
        assert_eq!(parsed("1.5T"), Some(3 << 39));
        assert_eq!(parsed("12B"), Some(12));
    }

    #[test]
    fn what_is_no_size_is_refused() {
        for text in ["", "G", "ten", "-1", "1.5", "5X", "99999999999G", "1.2.3M", "1 0G", "NaNG"] {
            assert_eq!(parsed(text), None, "{text}");
        }
    }

    #[test]
    fn sizes_are_shown_in_the_largest_unit() {
        assert_eq!(Size(0).to_string(), "0 B");
        assert_eq!(Size(1023).to_string(), "1023 B");
        assert_eq!(Size(1536).to_string(), "1.5 KiB");
        assert_eq!(Size(10 << 30).to_string(), "10 GiB");
        assert_eq!(Size(u64::MAX).to_string(), "16 EiB");
    }
}
