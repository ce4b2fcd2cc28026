//! Checking a volume: its filesystem, and the store below.

use bytes::Bytes;
use thalweg_env::Env;
use thalweg_fs::check::{self, Damage, EmptyFile, Finding, LostRange, Report};
use thalweg_store::inplace::Mend;

use super::files;
use super::opened::Opened;
use super::scrub::Scrubbed;
use crate::attention::in_words;
use crate::failure::Outcome;
use crate::progress;

/// The findings, from the store upwards.
pub(crate) struct Checked {
    /// Whether damage was to be repaired.
    pub(crate) repair: bool,
    /// How the volume was recovered in memory, without a write.
    pub(crate) recovery: Option<String>,
    /// Transactions of the journal that were given up.
    pub(crate) given_up: u64,
    /// Repairs that the opening needed.
    pub(crate) opening: Vec<String>,
    /// Missing redundancy and the like, as [`Opened::attention`] has it.
    pub(crate) degraded: Vec<String>,
    /// The scrub of the store below, if there was one.
    pub(crate) store: Option<Scrubbed>,
    /// The check of the filesystem.
    pub(crate) files: Report,
    /// Why the filesystem could not be checked: the store below is damaged.
    pub(crate) unchecked: Option<String>,
}

impl Checked {
    /// Whether damage is left.
    pub(crate) fn is_damaged(&self) -> bool {
        self.unchecked.is_some()
            || self.files.is_damaged()
            || self.store.as_ref().is_some_and(|store| store.is_damaged)
    }

    /// Whether nothing was wrong.
    pub(crate) fn is_clean(&self) -> bool {
        let is_whole = |store: &Scrubbed| !store.is_damaged && !store.is_repaired;
        self.given_up == 0
            && self.opening.is_empty()
            && self.unchecked.is_none()
            && self.store.as_ref().is_none_or(is_whole)
            && self.files.is_clean()
    }

    /// The damage that is left, each with the next step.
    pub(crate) fn left(&self) -> Vec<String> {
        let mut left = Vec::new();
        if let Some(store) = self.store.as_ref().filter(|store| store.is_damaged) {
            left.push(match store.lost {
                0 => "the store has lost metadata (its map, or its catalogue): thalweg fsck -y repairs it, \
                      or gives up what it said"
                    .to_owned(),
                lost => format!(
                    "the store has {lost} blocks of which no copy is right: files that have them are \
                     listed above; a block that is written anew is whole again"
                ),
            });
        }
        if let Some(why) = &self.unchecked {
            left.push(format!("the filesystem was not checked: {why}"));
        }
        let findings = self.files.findings.iter();
        for finding in findings.filter(|finding| finding.outcome == check::Outcome::Left) {
            let at = path(&finding.path).map(|path| format!("{path}: ")).unwrap_or_default();
            left.push(format!(
                "{at}{}: {}",
                finding.damage,
                next_step(&finding.damage, self.repair)
            ));
        }
        left
    }

    /// The report as JSON.
    pub(crate) fn as_json(&self) -> serde_json::Value {
        let report = &self.files;
        let findings: Vec<_> = report
            .findings
            .iter()
            .map(|finding| {
                let (outcome, lost) = outcome(finding);
                let damage = finding.damage.to_string();
                let path = path(&finding.path);
                serde_json::json!({ "damage": damage, "path": path, "outcome": outcome, "lost": lost })
            })
            .collect();
        let lost: Vec<_> = report
            .lost
            .iter()
            .map(|LostRange { ino, path, bytes }| {
                let path = self::path(path);
                serde_json::json!({ "path": path, "inode": ino, "from": bytes.start, "to": bytes.end })
            })
            .collect();
        serde_json::json!({
            "clean": self.is_clean(),
            "recovery": self.recovery,
            "given_up": self.given_up,
            "opening": self.opening,
            "unchecked": self.unchecked,
            "store": self.store.as_ref().map(|store| &store.report),
            "findings": findings,
            "lost": lost,
            "degraded": self.degraded,
            "left": self.left(),
            "inodes": report.inodes,
            "directories": report.directories,
            "names": report.names,
            "extents": report.extents,
            "blocks": report.blocks,
            "unfinished": report.unfinished,
            "objects": report.contents.as_ref().map(|contents| contents.objects),
            "empty": report.contents.as_ref().map(|contents| empty_files(&contents.empty)),
        })
    }
}

/// Checks the filesystem of a volume that no other process has open; first, with `scrub`, the store below.
pub(crate) async fn check(
    env: &Env,
    opened: &Opened,
    scrub: bool,
    mut how: check::How,
    report: &dyn progress::Report,
) -> Outcome<Checked> {
    let store = match scrub {
        false => None,
        true => {
            let mend = if how.repair { Mend::Yes } else { Mend::No };
            Some(opened.scrub(mend, how.repair, report).await?)
        }
    };
    // Free blocks must be empty, and after a map sector was given up some may not be. And the check must find
    // the files of the blocks that the scrub found lost.
    how.data |= store.as_ref().is_some_and(|store| store.gave_up || store.lost > 0);
    let is_damaged = store.as_ref().is_some_and(|store| store.is_damaged);
    let (files, unchecked) = match files::check(env, opened, how).await {
        Err(failure) if is_damaged => (Report::default(), Some(failure.to_string())),
        files => (files?, None),
    };
    let (given_up, opening) = (opened.given_up(), opened.repaired());
    let (recovery, degraded) = (opened.recovery(), in_words(&opened.attention()));
    Ok(Checked {
        repair: how.repair,
        recovery,
        given_up,
        opening,
        degraded,
        store,
        files,
        unchecked,
    })
}

/// Checks the filesystem as a snapshot shows it; the report as JSON.
pub(crate) async fn check_snapshot(
    env: &Env,
    volume: &Opened,
    name: &str,
    data: bool,
) -> Outcome<serde_json::Value> {
    let how = check::How { data, ..check::How::default() };
    let files = files::check_snapshot(env, volume, name, how).await?;
    let checked = Checked {
        repair: false,
        recovery: volume.recovery(),
        given_up: 0,
        opening: Vec::new(),
        degraded: Vec::new(),
        store: None,
        files,
        unchecked: None,
    };
    Ok(checked.as_json())
}

fn empty_files(empty: &[EmptyFile]) -> Vec<serde_json::Value> {
    let file = |EmptyFile { ino, path, size }: &EmptyFile| serde_json::json!({ "path": self::path(path), "inode": ino, "size": size });
    empty.iter().map(file).collect()
}

/// The next step for damage that a check has left.
fn next_step(damage: &Damage, repair: bool) -> &'static str {
    match damage {
        Damage::Unreadable { .. } => {
            "write these bytes anew, from a backup, or delete the file, if the device does not give \
             them later"
        }
        _ if !repair => "thalweg fsck -y repairs it, if it can be repaired",
        Damage::Tree(_) => {
            "thalweg fsck -y gives up what of it cannot be read; after that, restore from a backup"
        }
        _ => "make room (delete files, or extend the volume), then run thalweg fsck -y again",
    }
}

/// The outcome of a finding in a word, and what was lost.
pub(crate) fn outcome(finding: &Finding) -> (&'static str, Option<&str>) {
    match &finding.outcome {
        check::Outcome::Left => ("left", None),
        check::Outcome::Repaired => ("repaired", None),
        check::Outcome::Lost(what) => ("lost", Some(what)),
    }
}

/// A path with control characters escaped.
pub(crate) fn path(path: &Option<Bytes>) -> Option<String> {
    let path = String::from_utf8_lossy(path.as_ref()?);
    Some(
        path.chars()
            .flat_map(|c| if c.is_control() { c.escape_default().collect() } else { vec![c] })
            .collect(),
    )
}
