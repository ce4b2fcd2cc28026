//! The journal of a client of a shared filesystem: a file or a device of this machine.

use std::path::Path;
use std::time::Duration;

use thalweg_cluster::client::{JournaledData, journal};
use thalweg_env::Env;
use thalweg_store::device::{Access, DeviceError, DeviceRef};
use thalweg_store::inplace::{self, Mode};
use thalweg_store::pool::PoolError;

use crate::devices;
use crate::failure::{Failure, Outcome, explain_journal};
use crate::request::journal_options::JournalOptions;

/// Bytes of a new journal.
pub(crate) const USUAL_SIZE: u64 = 2 << 30;
/// How often a mount looks whether its journal is free, and how long it waits in between.
const ATTEMPTS: u32 = 30;
const PAUSE: Duration = Duration::from_millis(100);

/// Opens a journal for a mount; a file that is absent is made. The size is that of a new one: a mount in fstab names it each time.
pub(crate) async fn open(env: &Env, path: &Path, size: Option<u64>) -> Outcome<DeviceRef> {
    if !path.exists() {
        return create(env, path, size.unwrap_or(USUAL_SIZE)).await;
    }
    let device = device_when_free(env, path).await?;
    let there = device.geometry().size;
    if size.is_some_and(|size| size != there) {
        tracing::warn!(
            bytes = there,
            "journal_size= is about a new journal; this one keeps its size"
        );
    }
    Ok(device)
}

/// Makes a journal of a new file, or of the device that is there; all content of that is lost.
pub(crate) async fn create(env: &Env, path: &Path, size: u64) -> Outcome<DeviceRef> {
    let is_new = !path.exists();
    let made = make(env, path, is_new.then_some(size)).await;
    if made.is_err() && is_new {
        // Otherwise the next mount would find a file that is no journal.
        let _ = std::fs::remove_file(path);
    }
    made.map_err(|it| it.while_doing(format!("cannot make the journal {}", path.display())))
}

async fn make(env: &Env, path: &Path, size: Option<u64>) -> Outcome<DeviceRef> {
    if let Some(size) = size {
        devices::known(env).create(path, size).await.map_err(PoolError::from)?;
    }
    let device = device(env, path, Access::Exclusive).await?;
    journal::create(env, &device).await.map_err(|error| explain_journal(&error))?;
    Ok(device)
}

/// The file or device of a journal, which no other program may open meanwhile.
pub(crate) async fn device(env: &Env, path: &Path, access: Access) -> Outcome<DeviceRef> {
    let opened = devices::known(env).open(path, access).await;
    opened.map_err(|error| not_opened(error, path))
}

/// The same for a mount. A mount that was killed has its journal open until the kernel has ended its last writes, and the next one may
/// begin at once.
async fn device_when_free(env: &Env, path: &Path) -> Outcome<DeviceRef> {
    for _ in 0..ATTEMPTS {
        match devices::known(env).open(path, Access::Exclusive).await {
            Err(DeviceError::Locked { .. }) => env.sleep(PAUSE).await,
            opened => return opened.map_err(|error| not_opened(error, path)),
        }
    }
    device(env, path, Access::Exclusive).await
}

fn not_opened(error: DeviceError, path: &Path) -> Failure {
    let failure = Failure::from(PoolError::from(error));
    failure.while_doing(format!("cannot open the journal {}", path.display()))
}

/// A mount without a journal has no options of one.
pub(crate) fn refuse_options(options: &JournalOptions) -> Outcome<()> {
    let JournalOptions { data, threshold, commit, journal_size, .. } = options;
    let JournalOptions { on_conflict, conflict, replicate, receive, recall, sync, .. } = options;
    let is_about_journal = data.is_some()
        || threshold.is_some()
        || commit.is_some()
        || journal_size.is_some()
        || on_conflict.is_some()
        || conflict.is_some()
        || replicate.is_some()
        || receive.is_some()
        || recall.is_some()
        || sync.is_some();
    if is_about_journal {
        let words = "commit=, journal_size=, data=, threshold=, conflict=, on_conflict=, recall=, sync=, replicate= and receive are about a journal";
        return Err(Failure::new(words).help("name one with journal_dev=PATH, or leave them out"));
    }
    Ok(())
}

/// Which bytes of files the journal of a client has.
pub(crate) fn data_of(options: &JournalOptions) -> Outcome<JournaledData> {
    let threshold = options.threshold.filter(|_| options.data != Some(Mode::Selective));
    if threshold.is_some() {
        return Err(Failure::new("threshold= is about data=selective")
            .help("add data=selective, or leave threshold= out"));
    }
    match options.data {
        None | Some(Mode::Wasteless) => Ok(JournaledData::Wasteless),
        Some(Mode::Data) => Ok(JournaledData::Pages),
        Some(Mode::Selective) => {
            let usual = inplace::Options::default().threshold;
            let threshold = options.threshold.unwrap_or(usual);
            Ok(JournaledData::Selective { threshold })
        }
        Some(mode @ (Mode::Writeback | Mode::Ordered)) => {
            Err(Failure::new(format!("a client's journal has no mode {mode}"))
                .help("data=wasteless, data=data and data=selective are possible"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::mount_options::{MountOptions, Unknown};

    #[test]
    fn a_journal_of_a_client_has_three_of_the_modes() {
        let data = |list: &str| {
            let options = MountOptions::parse(&[list.to_owned()], Unknown::Refuse);
            data_of(&options.unwrap().journal).map_err(|error| error.to_string())
        };
        let selective = |threshold| Ok(JournaledData::Selective { threshold });
        assert_eq!(data("ro"), Ok(JournaledData::Wasteless));
        assert_eq!(data("data=wasteless"), Ok(JournaledData::Wasteless));
        assert_eq!(data("data=data"), Ok(JournaledData::Pages));
        assert_eq!(data("data=selective"), selective(4096));
        assert_eq!(data("data=selective,threshold=64K"), selective(65_536));
        for (wrong, word) in [
            ("data=ordered", "ordered"),
            ("data=writeback", "writeback"),
            ("threshold=1", "threshold="),
        ] {
            assert!(data(wrong).unwrap_err().contains(word), "{wrong}");
        }
    }
}
