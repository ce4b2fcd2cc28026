//! The options behind `-o` of a mount.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use thalweg_cluster::client::Recover;
use thalweg_cluster::client::address::MOVE_PORT;
use thalweg_fs::local::Atime;
use thalweg_fuse::mounted;
use thalweg_store::inplace::Mode;

use super::away_options::AwayOptions;
use super::journal_options::JournalOptions;
use super::option_values::{Setting, bytes, seconds, size, yes_or_no};
use crate::failure::{Failure, Outcome};

/// Bytes that the kernel reads ahead unless told otherwise.
const READ_AHEAD: u32 = 1 << 20;

/// The options behind `-o`; an option that is not given is `None`, or as in ext4.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MountOptions {
    /// Change an existing mount.
    pub(crate) remount: bool,
    /// Refuse changes.
    pub(crate) read_only: Option<bool>,
    /// Honour set-user-id and set-group-id bits.
    pub(crate) suid: Option<bool>,
    /// Allow opening of devices.
    pub(crate) dev: Option<bool>,
    /// Allow running of programs.
    pub(crate) exec: Option<bool>,
    /// Every write is durable when it returns.
    pub(crate) sync: Option<bool>,
    /// Every change of a directory is durable when it returns.
    pub(crate) dirsync: bool,
    /// When a read updates the access time.
    pub(crate) atime: Option<AtimeWord>,
    /// All users may use the mount, subject to permissions. Default for root's mounts.
    pub(crate) allow_other: Option<bool>,
    /// The kernel's page cache collects writes.
    pub(crate) writeback_cache: bool,
    /// Threads that serve the kernel's requests.
    pub(crate) threads: Option<usize>,
    /// Bytes that the kernel reads ahead.
    pub(crate) read_ahead: Option<u32>,
    /// How long a thread that has answered a request looks for the next one before it sleeps.
    pub(crate) spin: Option<Duration>,
    /// Whether a client of a shared filesystem reaches contents itself.
    pub(crate) contents: Option<ContentsWord>,
    /// What a client of a shared filesystem does when the server has ended its session.
    pub(crate) recover: Option<Recover>,
    /// What becomes of calls and mounts while the server of a shared filesystem is away.
    pub(crate) away: AwayOptions,
    /// How an in-place volume keeps its journal.
    pub(crate) journal: JournalOptions,
}

/// How the client of a shared filesystem reaches contents of files that are kept as objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ContentsWord {
    /// By itself, if it can.
    Direct,
    /// Through the server.
    Server,
}

/// When a read updates the access time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum AtimeWord {
    Relative,
    Strict,
    Never,
}

/// What to do about unknown options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unknown {
    Refuse,
    /// For `mount -s`.
    Ignore,
}

impl MountOptions {
    /// Reads comma-separated lists of options; of options that exclude each other, the last one counts.
    pub(crate) fn parse(lists: &[String], unknown: Unknown) -> Outcome<MountOptions> {
        let mut options = MountOptions::default();
        let mut strange = Vec::new();
        let words = lists.iter().flat_map(|list| list.split(','));
        for word in words.map(str::trim).filter(|word| !word.is_empty()) {
            let (name, value) = match word.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (word, None),
            };
            let known = match value {
                None => options.take_word(name),
                Some(value) => options.take_value(name, value)?,
            };
            if !known {
                strange.push(word);
            }
        }
        match strange.is_empty() || unknown == Unknown::Ignore {
            true => Ok(options),
            false => Err(Failure::new(format!("unknown mount option: {}", strange.join(", ")))
                .help("thalweg mount --help lists them; mount -s ignores unknown ones")),
        }
    }

    fn take_word(&mut self, word: &str) -> bool {
        match word {
            "remount" => self.remount = true,
            "ro" => self.read_only = Some(true),
            "rw" => self.read_only = Some(false),
            "suid" => self.suid = Some(true),
            "nosuid" => self.suid = Some(false),
            "dev" => self.dev = Some(true),
            "nodev" => self.dev = Some(false),
            "exec" => self.exec = Some(true),
            "noexec" => self.exec = Some(false),
            "sync" => self.sync = Some(true),
            "async" => self.sync = Some(false),
            "dirsync" => self.dirsync = true,
            "atime" | "relatime" | "nostrictatime" => self.atime = Some(AtimeWord::Relative),
            "strictatime" => self.atime = Some(AtimeWord::Strict),
            "noatime" => self.atime = Some(AtimeWord::Never),
            "allow_other" => self.allow_other = Some(true),
            "writeback_cache" => self.writeback_cache = true,
            "receive" => self.journal.receive = Some(format!("0.0.0.0:{MOVE_PORT}")),
            "barrier" => self.journal.barrier = Some(true),
            "nobarrier" => self.journal.barrier = Some(false),
            "discard" => self.journal.discard = Some(true),
            "nodiscard" => self.journal.discard = Some(false),
            // Options that mount(8) handles, and options that are always on.
            "defaults"
            | "auto"
            | "noauto"
            | "nofail"
            | "_netdev"
            | "user"
            | "nouser"
            | "users"
            | "owner"
            | "group"
            | "silent"
            | "loud"
            | "default_permissions"
            | "acl"
            | "user_xattr"
            | "diratime" => {}
            word if self.away.take_word(word) => {}
            word => return word.starts_with("x-") || word.starts_with("X-"),
        }
        true
    }

    fn take_value(&mut self, name: &str, value: &str) -> Outcome<bool> {
        let journal = &mut self.journal;
        match name {
            "data" => journal.data = Some(value.parse::<Mode>().map_err(Failure::new)?),
            "journal_dev" => journal.journal_dev = Some(value.into()),
            "journal_size" => journal.journal_size = Some(size(name, value)?.0),
            "on_conflict" | "conflict" | "replicate" | "receive" | "recall" | "sync" | "memory"
            | "background" => journal.take_shared(name, value)?,
            "threshold" => journal.threshold = Some(bytes(name, value)?),
            "gap" => journal.gap = Some(Setting::parse(value, |value| bytes(name, value))?),
            "rotational" => {
                journal.rotational = Some(Setting::parse(value, |value| yes_or_no(name, value))?);
            }
            "commit" => journal.commit = Some(seconds(name, value)?),
            "writeback" => journal.writeback = Some(seconds(name, value)?),
            "expire" => journal.expire = Some(seconds(name, value)?),
            "barrier" => journal.barrier = Some(yes_or_no(name, value)?),
            // Options that mount(8) and mount.fuse3 copy from the mount table.
            "user_id" | "group_id" | "rootmode" | "fd" | "max_read" | "blksize" | "fsname"
            | "subtype" => {}
            "threads" => {
                let threads = value.parse().ok().filter(|threads| (1..=64).contains(threads));
                let wrong = || format!("threads={value} is not a number from 1 to 64");
                self.threads = Some(threads.ok_or_else(|| Failure::new(wrong()))?);
            }
            "spin" => {
                let micros = value.parse().ok().filter(|micros| *micros <= 1000);
                let wrong =
                    || Failure::new(format!("spin={value} is not a number of µs from 0 to 1000"));
                self.spin = Some(Duration::from_micros(micros.ok_or_else(wrong)?));
            }
            "recover" => {
                let wrong = || Failure::new(format!("recover={value} is neither clean nor no"));
                self.recover = Some(value.parse().map_err(|_| wrong())?);
            }
            "read_ahead" => self.read_ahead = Some(bytes(name, value)?),
            "contents" => {
                let wrong = || format!("contents={value} is neither direct nor server");
                self.contents = Some(match value {
                    "direct" => ContentsWord::Direct,
                    "server" => ContentsWord::Server,
                    _ => return Err(Failure::new(wrong())),
                });
            }
            "user" | "comment" => {}
            name if self.away.take_value(name, value)? => {}
            name => return Ok(name.starts_with("x-") || name.starts_with("X-")),
        }
        Ok(true)
    }

    /// The kernel's options for a mount of `source`.
    pub(crate) fn for_kernel(&self, source: String) -> mounted::MountOptions {
        let defaults = mounted::MountOptions::default();
        mounted::MountOptions {
            source,
            threads: self.threads.unwrap_or(defaults.threads),
            read_only: self.read_only.unwrap_or(false),
            // SAFETY: the call only reads the process's identity and cannot fail.
            allow_other: self.allow_other.unwrap_or(unsafe { libc::geteuid() } == 0),
            writeback_cache: self.writeback_cache,
            checks_users: false,
            suid: self.suid.unwrap_or(true),
            dev: self.dev.unwrap_or(true),
            exec: self.exec.unwrap_or(true),
            sync: self.sync.unwrap_or(false),
            dirsync: self.dirsync,
            noatime: self.atime == Some(AtimeWord::Never),
            private: false,
            locks: defaults.locks,
            soft: None,
            read_ahead: Some(self.read_ahead.unwrap_or(READ_AHEAD)),
            spin: self.spin.unwrap_or(defaults.spin),
        }
    }

    /// Whether an option is given that the kernel alone keeps.
    pub(crate) fn changes_flags(&self) -> bool {
        let said = [self.read_only, self.suid, self.dev, self.exec, self.sync];
        said.iter().any(Option::is_some)
    }

    /// The filesystem's options.
    pub(crate) fn for_files(&self) -> thalweg_fs::local::Options {
        let atime = match self.atime {
            None | Some(AtimeWord::Relative) => Atime::Relative,
            Some(AtimeWord::Strict) => Atime::Strict,
            Some(AtimeWord::Never) => Atime::Never,
        };
        let read_only = self.read_only.unwrap_or(false);
        thalweg_fs::local::Options { atime, read_only, ..Default::default() }
    }
}

#[cfg(test)]
mod tests {
    use thalweg_store::inplace;

    use super::*;

    fn parse(list: &str) -> Outcome<MountOptions> {
        MountOptions::parse(&[list.to_owned()], Unknown::Refuse)
    }

    #[test]
    fn words_as_in_fstab_are_read() {
        let options =
            parse("defaults,noauto,x-systemd.automount,nofail,user=me,nosuid,ro").unwrap();
        let kernel = options.for_kernel("/srv/vol".to_owned());
        assert_eq!((kernel.read_only, kernel.suid, kernel.dev), (true, false, true));
        assert_eq!(kernel.source, "/srv/vol");
        assert_eq!(kernel.read_ahead, Some(1 << 20));
        let far = parse("read_ahead=8M").unwrap();
        assert_eq!(far.for_kernel(String::new()).read_ahead, Some(8 << 20));
        let spin = |list| parse(list).unwrap().for_kernel(String::new()).spin.as_micros();
        assert_eq!((spin("ro"), spin("spin=0"), spin("spin=200")), (50, 0, 200));
        assert_eq!(parse("recover=no").unwrap().recover, Some(Recover::No));
        assert_eq!(parse("recover=no,recover=clean").unwrap().recover, Some(Recover::Clean));
        assert_eq!(parse("defaults").unwrap(), MountOptions::default());
        assert_eq!(parse("noatime,strictatime").unwrap().for_files().atime, Atime::Strict);
        assert_eq!(parse("ro,rw").unwrap().read_only, Some(false));
        let lists = ["ro".to_owned(), "remount,sync".to_owned()];
        let both = MountOptions::parse(&lists, Unknown::Refuse).unwrap();
        assert_eq!((both.read_only, both.remount, both.sync), (Some(true), true, Some(true)));
    }

    #[test]
    fn the_journal_has_the_words_of_ext4() {
        let list = "data=selective,journal_dev=/dev/sdb,threshold=2048,commit=5,barrier=0,\
                    writeback=6,expire=30,gap=65536,rotational=0,nodiscard";
        let journal = parse(list).unwrap().journal;
        assert_eq!(journal.words().join(","), list);
        assert_eq!(parse("data=journal").unwrap().journal.data, Some(Mode::Data));
        assert_eq!(parse("nobarrier").unwrap().journal.barrier, Some(false));
        assert!(parse("threshold=4K").unwrap().journal.threshold == Some(4096));
        let options = parse(list).unwrap().journal.over(inplace::Options::default());
        assert_eq!((options.mode, options.threshold), (Mode::Selective, 2048));
        assert_eq!((options.gap, options.rotational), (Some(65_536), Some(false)));
        let shared = "recall=5,memory=1048576,background=1048576,sync=server,";
        let journal = parse(&format!("{shared}replicate=k1")).unwrap().journal;
        assert!(journal.words().join(",").starts_with(shared), "{:?}", journal.words());
        // `auto` resets what was set.
        let auto = parse("gap=auto,rotational=auto").unwrap().journal;
        assert_eq!(auto.words().join(","), "gap=auto,rotational=auto");
        let again = auto.over(options);
        assert_eq!((again.gap, again.rotational), (None, None));
        assert_eq!((options.commit.as_secs(), options.writeback.as_secs()), (5, 6));
        assert!(!options.barrier);
        for wrong in [
            "data=all",
            "threshold=8G",
            "commit=soon",
            "barrier=2",
            "gap=x",
            "rotational=maybe",
            "threads=0",
            "spin=1001",
            "read_ahead=far",
            "contents=far",
            "recall=0",
            "recall=41",
            "recall=x",
            "memory=5K",
            "background=much",
            "sync=here",
            "recover=maybe",
            "recover=",
        ] {
            let failure = parse(wrong).unwrap_err();
            let name = wrong.split('=').next().unwrap();
            assert!(failure.to_string().contains(name), "{wrong}: {failure}");
        }
    }

    #[test]
    fn unknown_words_are_named() {
        let failure = parse("ro,frobnicate,uid=5").unwrap_err();
        assert_eq!(failure.to_string(), "unknown mount option: frobnicate, uid=5");
        let lists = ["ro,frobnicate".to_owned()];
        let ignored = MountOptions::parse(&lists, Unknown::Ignore).unwrap();
        assert_eq!(ignored.read_only, Some(true));
    }
}
