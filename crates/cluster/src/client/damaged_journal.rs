//! A journal that is damaged in its middle: nothing of it is written back, since a prefix would be taken for all of it. Changes that can be read are
//! shown and exported, and the positions of the others are named.

use thalweg_env::HashSet;
use thalweg_store::journal::log::{FoundRecord, LogRecovery};
use thalweg_store::journal::{End, JournalError};
use uuid::Uuid;

use super::journal_format::{Chain, Entry};
use super::journal_record::JournalRecord;
use super::journal_runs::Run;

/// What of a journal cannot be read.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct JournalDamage {
    /// Positions of changes: the first and the last one of each range, without a last one if nothing behind can be read.
    pub lost: Vec<(u64, Option<u64>)>,
    /// Changes behind the damage that can be read. They may rest on those that cannot.
    pub behind: usize,
    /// The inodes that these change.
    pub behind_files: usize,
}

/// A record behind the damage.
pub(super) struct Behind {
    entry: Entry,
    pub(super) runs: Vec<Run>,
}

impl Behind {
    fn decode(found: FoundRecord) -> Option<Behind> {
        let entry = Entry::decode(found.stamp, &found.header)?;
        let runs = match entry.mark {
            Some(_) => Vec::new(),
            None => JournalRecord::decode(&found)?.runs,
        };
        Some(Behind { entry, runs })
    }

    /// The session that it is of.
    pub(super) fn session(&self) -> Uuid {
        self.entry.head.session
    }

    /// The position of its first change.
    pub(super) fn first(&self) -> u64 {
        self.entry.head.first
    }
}

/// Why a damaged journal is not mounted.
pub(super) fn refusal(device: String, end: End) -> JournalError {
    let record = match end {
        End::Rotten { sequence, later } => {
            format!(
                "record {sequence} cannot be read, and was durable, as those up to {later} were"
            )
        }
        End::Clean | End::Torn => "its records do not follow one another".to_owned(),
    };
    JournalError::Invalid(format!(
        "the journal {device} is damaged in its middle: {record}. Nothing of it is written back: `thalweg cluster journal inspect {device}` shows what can be read, `thalweg cluster journal export {device} FOLDER` writes that into files, and `thalweg cluster journal erase --force {device}` gives up what it has"
    ))
}

/// Reads what is behind the records of a chain. The last one of these, or the last one before it that was released, had this position.
pub(super) async fn read_behind(
    log: &LogRecovery,
    chain: &Chain,
    last: u64,
) -> Result<(JournalDamage, Vec<Behind>), JournalError> {
    let behind = log.behind_damage(Behind::decode).await?;
    let mut damage = JournalDamage::default();
    let (mut next, mut inodes) = (chain.next.max(last + 1), HashSet::default());
    for Behind { entry, runs } in &behind {
        let first = entry.head.first;
        if first > next {
            damage.lost.push((next, Some(first - 1)));
        }
        next = next.max(entry.last + 1);
        for it in runs.iter().flat_map(|run| &run.mutations) {
            let kind = &it.mutation.kind;
            inodes.insert(kind.made().or(kind.unlinked()).unwrap_or(kind.ino()));
            damage.behind += 1;
        }
    }
    if behind.is_empty() {
        damage.lost.push((next, None));
    }
    damage.behind_files = inodes.len();
    Ok((damage, behind))
}
