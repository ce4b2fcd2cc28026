//! The options of a mount about a server that is away, by the words of nfs(5).

use std::time::Duration;

use serde::{Deserialize, Serialize};
use thalweg_fuse::mounted::Soft;

use crate::failure::{Failure, Outcome};

/// A tenth of a second, the unit of `timeo`.
const DECISECOND: Duration = Duration::from_millis(100);
/// `timeo` and `retrans` where they are not given, as in nfs(5) for TCP.
const TIMEO: u32 = 600;
const RETRANS: u32 = 2;
/// How long a mount in the background tries, as in nfs(5).
const BACKGROUND_RETRY: Duration = Duration::from_secs(10_000 * 60);

/// The options about a server that is away; an option that is not given is `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AwayOptions {
    /// What becomes of calls.
    pub(crate) calls: Option<CallsWord>,
    /// Deciseconds until a call is tried again.
    pub(crate) timeo: Option<u32>,
    /// How often a call is tried again before it fails.
    pub(crate) retrans: Option<u32>,
    /// How long the mount itself is tried again.
    pub(crate) retry: Option<Duration>,
    /// The mount goes on in the background when the server is away.
    pub(crate) background: Option<bool>,
}

/// What becomes of calls while the server is away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum CallsWord {
    /// They wait.
    Hard,
    /// They fail with `EIO` after a time.
    Soft,
    /// They fail with `ETIMEDOUT` after a time.
    Softerr,
    /// They fail with `EIO` when the lease is over.
    Disconnected,
}

impl AwayOptions {
    /// Takes a word without a value; whether it is one of these.
    pub(super) fn take_word(&mut self, word: &str) -> bool {
        match word {
            "hard" => self.calls = Some(CallsWord::Hard),
            "soft" => self.calls = Some(CallsWord::Soft),
            "softerr" => self.calls = Some(CallsWord::Softerr),
            "bg" => self.background = Some(true),
            "fg" => self.background = Some(false),
            // A program can be killed in any case; mount.nfs ignores these too.
            "intr" | "nointr" => {}
            _ => return false,
        }
        true
    }

    /// Takes a word with a value; whether it is one of these.
    pub(super) fn take_value(&mut self, name: &str, value: &str) -> Outcome<bool> {
        match name {
            "disconnected" => {
                self.calls = Some(match value {
                    "wait" => CallsWord::Hard,
                    "error" => CallsWord::Disconnected,
                    _ => {
                        let why = format!("disconnected={value} is neither wait nor error");
                        return Err(Failure::new(why));
                    }
                });
            }
            "timeo" => self.timeo = Some(number(name, value, 1, "tenths of a second")?),
            "retrans" => self.retrans = Some(number(name, value, 0, "tries")?),
            "retry" => {
                let minutes = number(name, value, 0, "minutes")?;
                self.retry = Some(Duration::from_secs(60) * minutes);
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// When calls fail.
    pub(crate) fn soft(&self) -> Option<Soft> {
        let calls = self.calls.filter(|calls| *calls != CallsWord::Hard)?;
        if calls == CallsWord::Disconnected {
            return Some(Soft { limit: None, is_told_apart: false });
        }
        let tries = self.retrans.unwrap_or(RETRANS).saturating_add(1);
        let limit = DECISECOND.saturating_mul(self.timeo.unwrap_or(TIMEO)).saturating_mul(tries);
        Some(Soft { limit: Some(limit), is_told_apart: calls == CallsWord::Softerr })
    }

    /// Whether a mount goes on in the background.
    pub(crate) fn goes_to_background(&self) -> bool {
        self.background == Some(true)
    }

    /// How long a mount is tried again, in the foreground or in the background.
    pub(crate) fn retry(&self, in_background: bool) -> Duration {
        let default = if in_background { BACKGROUND_RETRY } else { Duration::ZERO };
        self.retry.unwrap_or(default)
    }
}

fn number(name: &str, value: &str, least: u32, unit: &str) -> Outcome<u32> {
    let number = value.parse().ok().filter(|number| *number >= least);
    number.ok_or_else(|| {
        Failure::new(format!("{name}={value} is not a number of {unit}, from {least} on"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(list: &str) -> AwayOptions {
        let mut options = AwayOptions::default();
        for word in list.split(',') {
            match word.split_once('=') {
                Some((name, value)) => assert!(options.take_value(name, value).unwrap(), "{word}"),
                None => assert!(options.take_word(word), "{word}"),
            }
        }
        options
    }

    #[test]
    fn calls_fail_after_the_time_of_nfs() {
        let soft = |list: &str| parsed(list).soft()?.limit.map(|limit| limit.as_secs_f64());
        assert_eq!(soft("intr"), None);
        assert_eq!(soft("soft"), Some(180.0));
        assert_eq!(soft("soft,timeo=5,retrans=0"), Some(0.5));
        assert_eq!(soft("timeo=10,retrans=2,softerr"), Some(3.0));
        assert_eq!(soft("soft,timeo=10,hard"), None);
        assert!(parsed("softerr").soft().unwrap().is_told_apart);
        assert!(!parsed("softerr,soft").soft().unwrap().is_told_apart);
        assert!(soft("soft,timeo=4294967295,retrans=4294967295").unwrap() > 1e9);
    }

    #[test]
    fn the_last_word_says_what_becomes_of_calls() {
        let at_lease_end = Some(Soft { limit: None, is_told_apart: false });
        for list in
            ["disconnected=error", "soft,timeo=5,disconnected=error", "hard,disconnected=error"]
        {
            assert_eq!(parsed(list).soft(), at_lease_end, "{list}");
        }
        for list in ["disconnected=wait", "soft,disconnected=wait", "disconnected=error,hard"] {
            assert_eq!(parsed(list).soft(), None, "{list}");
        }
        assert!(parsed("disconnected=error,soft").soft().unwrap().limit.is_some());
        let failure = AwayOptions::default().take_value("disconnected", "maybe").unwrap_err();
        assert!(failure.to_string().contains("neither wait nor error"), "{failure}");
    }

    #[test]
    fn a_mount_is_tried_for_minutes() {
        let minutes = |list: &str, background| parsed(list).retry(background).as_secs() / 60;
        assert_eq!((minutes("fg", false), minutes("bg", true)), (0, 10_000));
        assert_eq!((minutes("retry=3", false), minutes("bg,retry=3", true)), (3, 3));
        assert!(parsed("bg").goes_to_background() && !parsed("bg,fg").goes_to_background());
        for wrong in ["timeo=0", "timeo=x", "retrans=-1", "retry=soon", "retry=9999999999"] {
            let (name, value) = wrong.split_once('=').unwrap();
            let failure = AwayOptions::default().take_value(name, value).unwrap_err();
            assert!(failure.to_string().contains(wrong), "{failure}");
        }
    }
}
