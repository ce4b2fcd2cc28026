//! The journal of a client of a shared filesystem: a file or a device of this machine.

use std::path::{Path, PathBuf};
use std::time::Duration;

use thalweg_cluster::client::{JournaledData, journal};
use thalweg_env::Env;
use thalweg_store::device::{Access, DeviceError, DeviceRef, SideState};
use thalweg_store::inplace::{self, Mode};
use thalweg_store::pool::{
    DevicePair, FileMedia, Media, NamedSide, PairError, PoolError, SideReport, lone_side,
};

use crate::devices;
use crate::failure::{Failure, Outcome, explain_journal, explain_pair};
use crate::request::journal_options::JournalOptions;
use crate::request::journal_place::{JournalPlace, MISSING};

/// Bytes of a new journal.
pub(crate) const USUAL_SIZE: u64 = 2 << 30;
/// How often a mount looks whether its journal is free, and how long it waits in between.
const ATTEMPTS: u32 = 30;
const PAUSE: Duration = Duration::from_millis(100);

/// A journal that is open.
pub(crate) struct OpenJournal {
    pub(crate) device: DeviceRef,
    /// If it is on two devices.
    pub(crate) mirror: Option<DevicePair>,
}

/// Opens a journal for a mount; a file that is absent is made. The size is that of a new one: a mount in fstab names it each time.
pub(crate) async fn open(env: &Env, place: &Path, size: Option<u64>) -> Outcome<OpenJournal> {
    let place = JournalPlace::parse(place)?;
    if place.is_new() {
        return create(env, &place, size.unwrap_or(USUAL_SIZE)).await;
    }
    let opened = match &place {
        JournalPlace::One(path) => {
            let device = device_when_free(env, path).await?;
            refuse_lone_side(&device, path).await?;
            OpenJournal { device, mirror: None }
        }
        JournalPlace::Two(paths) => {
            let opened = pair(env, paths, Access::Exclusive).await?;
            fill(env, &opened);
            opened
        }
    };
    if size.is_some_and(|size| !place.has_size(size)) {
        tracing::warn!(
            bytes = opened.device.geometry().size,
            "journal_size= is about a new journal; this one keeps its size"
        );
    }
    Ok(opened)
}

/// Makes a journal of new files, or of the devices that are there; all content of these is lost.
pub(crate) async fn create(env: &Env, place: &JournalPlace, size: u64) -> Outcome<OpenJournal> {
    let new: Vec<&PathBuf> = place.paths().iter().filter(|path| !path.exists()).collect();
    let made = make(env, place, &new, size).await;
    if made.is_err() {
        // Otherwise the next mount would find a file that is no journal.
        new.iter().for_each(|path| drop(std::fs::remove_file(path)));
    }
    made.map_err(|it| it.while_doing(format!("cannot make the journal {place}")))
}

async fn make(
    env: &Env,
    place: &JournalPlace,
    new: &[&PathBuf],
    size: u64,
) -> Outcome<OpenJournal> {
    for path in new {
        devices::known(env).create(path, size).await.map_err(PoolError::from)?;
    }
    let opened = match place {
        JournalPlace::One(path) => {
            OpenJournal { device: open_one(env, path, Access::Exclusive).await?, mirror: None }
        }
        JournalPlace::Two(paths) => {
            refuse_same(paths).await?;
            let [first, second] = paths;
            let first = open_one(env, first, Access::Exclusive).await?;
            let second = open_one(env, second, Access::Exclusive).await?;
            let pair = DevicePair::create(env, [first, second]).await.map_err(explain_pair)?;
            OpenJournal { device: pair.device(), mirror: Some(pair) }
        }
    };
    journal::create(env, &opened.device).await.map_err(|error| explain_journal(&error))?;
    Ok(opened)
}

/// Makes a journal empty. One device of a mirror becomes a journal of its own.
pub(crate) async fn erase(env: &Env, place: &JournalPlace) -> Outcome<()> {
    let device = match place {
        JournalPlace::One(path) => open_one(env, path, Access::Exclusive).await?,
        JournalPlace::Two(paths) => pair(env, paths, Access::Exclusive).await?.device,
    };
    let erased = journal::create(env, &device).await;
    erased.map_err(|error| {
        explain_journal(&error).while_doing(format!("cannot make the journal {place}"))
    })
}

/// The devices of a journal for a command, which no other program may open meanwhile unless it only reads. Of a mirror of which one device is named,
/// reading shows what that has.
pub(crate) async fn device(env: &Env, place: &JournalPlace, access: Access) -> Outcome<DeviceRef> {
    match place {
        JournalPlace::One(path) => {
            let device = open_one(env, path, access).await?;
            Ok(lone_side(&device).await?.unwrap_or(device))
        }
        JournalPlace::Two(paths) => Ok(pair(env, paths, access).await?.device),
    }
}

/// A file or device of a journal.
pub(crate) async fn open_one(env: &Env, path: &Path, access: Access) -> Outcome<DeviceRef> {
    let opened = devices::known(env).open(path, access).await;
    opened.map_err(|error| not_opened(error, path))
}

/// The same for a mount. A mount that was killed has its journal open until the kernel has ended its last writes, and the next one may
/// begin at once.
async fn device_when_free(env: &Env, path: &Path) -> Outcome<DeviceRef> {
    when_free(env, path, Access::Exclusive).await.map_err(|error| not_opened(error, path))
}

async fn when_free(env: &Env, path: &Path, access: Access) -> Result<DeviceRef, DeviceError> {
    for _ in 0..ATTEMPTS {
        match devices::known(env).open(path, access).await {
            Err(DeviceError::Locked { .. }) => env.sleep(PAUSE).await,
            opened => return opened,
        }
    }
    devices::known(env).open(path, access).await
}

fn not_opened(error: DeviceError, path: &Path) -> Failure {
    let failure = Failure::from(PoolError::from(error));
    failure.while_doing(format!("cannot open the journal {}", path.display()))
}

/// Opens the two devices of a mirror, or the one that is there.
async fn pair(env: &Env, paths: &[PathBuf; 2], access: Access) -> Outcome<OpenJournal> {
    refuse_same(paths).await?;
    let [first, second] = paths;
    let named = [named_side(env, first, access).await?, named_side(env, second, access).await?];
    let pair = DevicePair::open(env, named, access).await.map_err(explain_pair)?;
    Ok(OpenJournal { device: pair.device(), mirror: Some(pair) })
}

async fn named_side(env: &Env, path: &Path, access: Access) -> Outcome<NamedSide> {
    if path.as_os_str() == MISSING {
        return Ok(NamedSide::Lost);
    }
    match when_free(env, path, access).await {
        Ok(device) => Ok(NamedSide::Present(device)),
        Err(error @ DeviceError::Locked { .. }) => Err(not_opened(error, path)),
        Err(error) => {
            tracing::warn!(device = %path.display(), %error, "a device of the journal is not used");
            Ok(NamedSide::Missing(path.display().to_string()))
        }
    }
}

async fn refuse_same(paths: &[PathBuf; 2]) -> Outcome<()> {
    let mut found = Vec::new();
    for path in paths {
        found.push(FileMedia.find(path).await.ok().flatten().map(|it| it.identity));
    }
    let [first, second] = paths.each_ref().map(|path| path.display().to_string());
    match first == second || (found[0].is_some() && found[0] == found[1]) {
        true => Err(explain_pair(PairError::Twice { first, second })),
        false => Ok(()),
    }
}

/// A device of a mirror alone may have been left behind by the other one.
async fn refuse_lone_side(device: &DeviceRef, path: &Path) -> Outcome<()> {
    if lone_side(device).await?.is_none() {
        return Ok(());
    }
    let path = path.display();
    Err(Failure::new(format!("{path} is one of the two devices of a mirrored journal")).help(
        format!("name both: journal_dev={path}+OTHER, or {path}+{MISSING} if the other one is lost for good"),
    ))
}

/// Says which devices lack something, and copies it to them while the mount goes on.
fn fill(env: &Env, opened: &OpenJournal) {
    let Some(pair) = opened.mirror.clone() else { return };
    for SideReport { device, state } in pair.sides() {
        if state != SideState::InSync {
            tracing::warn!(device, %state, "the journal is on one device alone");
        }
    }
    let filling = async move {
        match pair.fill().await {
            Ok(true) => tracing::info!("the journal is on both of its devices again"),
            Ok(false) => {}
            Err(error) => tracing::error!(%error, "a device of the journal was not filled"),
        }
    };
    env.spawn(filling).detach();
}

/// A mount without a journal has no options of one.
pub(crate) fn refuse_options(options: &JournalOptions) -> Outcome<()> {
    let JournalOptions { data, threshold, commit, journal_size, .. } = options;
    let JournalOptions { on_conflict, conflict, replicate, receive, recall, sync, .. } = options;
    let JournalOptions { memory, background, .. } = options;
    let is_about_journal = data.is_some()
        || threshold.is_some()
        || commit.is_some()
        || journal_size.is_some()
        || on_conflict.is_some()
        || conflict.is_some()
        || replicate.is_some()
        || receive.is_some()
        || recall.is_some()
        || memory.is_some()
        || background.is_some()
        || sync.is_some();
    if is_about_journal {
        let words = "commit=, journal_size=, data=, threshold=, conflict=, on_conflict=, recall=, memory=, background=, sync=, replicate= and receive are about a journal";
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
