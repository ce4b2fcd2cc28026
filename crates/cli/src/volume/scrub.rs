//! Scrubbing an open volume: its store and its catalogue.

use serde_json::Value;
use thalweg_store::inplace::{InPlaceError, Mend};
use thalweg_store::open::AnyVolume;
use thalweg_store::tree::{TreeError, catalogue};

use super::opened::Opened;
use crate::attention::in_words as in_words_of;
use crate::failure::Outcome;
use crate::progress::{Report, share_done};

/// The result of a scrub.
pub(crate) struct Scrubbed {
    /// The store's report.
    pub(crate) report: Value,
    /// Whether damage is left.
    pub(crate) is_damaged: bool,
    /// Whether damage was repaired.
    pub(crate) is_repaired: bool,
    /// Whether a sector of the map was given up: blocks that were empty may then have content.
    pub(crate) gave_up: bool,
    /// Blocks of which no copy is right.
    pub(crate) lost: u64,
}

/// The number of blocks of which no copy is right, from a scrub's report.
pub(crate) fn lost_blocks(report: &Value) -> u64 {
    let listed = report["lost"].as_array().map(|lost| lost.len() as u64);
    listed.or(report["damaged"].as_u64()).unwrap_or(0)
}

/// A scrub's report in lines for a person: what was read, and everything that was wrong. `is_repaired`: what has
/// another copy was repaired, not only counted.
pub(crate) fn in_words(report: &Value, is_repaired: bool) -> Vec<String> {
    let count = |field: &str| report[field].as_u64().unwrap_or(0);
    let unsummed = match count("unsummed") {
        0 => String::new(),
        some => format!(", {some} of them without a checksum"),
    };
    let mut lines = vec![format!("{} blocks read{unsummed}", count("blocks"))];
    let done = if is_repaired { "repaired" } else { "left as they are" };
    let counted = [
        ("repaired", format!("wrong copies, {done}")),
        ("maps_replaced", format!("damaged maps of segments, {done}")),
        ("labels_replaced", format!("damaged labels, {done}")),
        ("damaged", "blocks without a right copy".to_owned()),
        ("map_sectors", "damaged sectors of the map".to_owned()),
        ("unverified", "blocks of those sectors that now read as the device has them".to_owned()),
    ];
    let counted = counted.iter().filter(|(field, _)| count(field) > 0);
    lines.extend(counted.map(|(field, what)| format!("{what}: {}", count(field))));
    let listed = [
        ("lost", "blocks without a right copy, by number"),
        ("damaged_blocks", "the first of them, by number"),
        ("catalogue_damaged", "damaged blocks of the catalogue, by number"),
        ("catalogue_repaired", "repaired blocks of the catalogue, by number"),
    ];
    for (field, what) in listed {
        let blocks: Vec<String> =
            report[field].as_array().into_iter().flatten().map(Value::to_string).collect();
        if !blocks.is_empty() {
            lines.push(format!("{what}: {}", blocks.join(", ")));
        }
    }
    if report["checkpoint_replaced"] == true {
        lines.push(format!("the parts of the checkpoint that were damaged are {done}"));
    }
    if let Some(error) = report["catalogue_error"].as_str() {
        lines.push(format!("the catalogue cannot be read: {error}"));
    }
    lines
}

impl Opened {
    /// Reads and verifies everything that is stored, and repairs bad copies from good ones (those of the
    /// catalogue if `repair`); with `mend`, gives up blocks without a good copy. On a read-only volume
    /// nothing is repaired, and a bad copy counts as damage.
    pub(crate) async fn scrub(
        &self,
        mend: Mend,
        repair: bool,
        report: &dyn Report,
    ) -> Outcome<Scrubbed> {
        // What is stored on a replica comes from its primary.
        let repair = repair && !self.is_read_only();
        // Before the scrub, so that it finds these blocks whole; and again after it, if they could not be
        // read before.
        let mut damaged = self.catalogue_damage(repair).await;
        let mut scrubbed = self.scrub_store(mend, report).await?;
        if damaged.is_err() && scrubbed.gave_up {
            damaged = self.catalogue_damage(repair).await;
        }
        match damaged {
            Ok(blocks) => {
                let is_damaged = !blocks.is_empty();
                scrubbed.is_damaged |= is_damaged && !repair;
                scrubbed.is_repaired |= is_damaged && repair;
                let what = if repair { "catalogue_repaired" } else { "catalogue_damaged" };
                scrubbed.report[what] = blocks.into();
            }
            Err(error) => {
                scrubbed.is_damaged = true;
                scrubbed.report["catalogue_error"] = error.to_string().into();
            }
        }
        Ok(scrubbed)
    }

    /// The catalogue's damaged blocks that have a good copy; with `repair`, repaired.
    async fn catalogue_damage(&self, repair: bool) -> Result<Vec<u64>, TreeError> {
        match repair {
            true => catalogue::repair(self.transactions()).await,
            false => catalogue::damaged_blocks(self.transactions()).await,
        }
    }

    async fn scrub_store(&self, mend: Mend, report: &dyn Report) -> Outcome<Scrubbed> {
        let progress = share_done("scrubbing", report);
        let mut scrubbed = match &self.store {
            AnyVolume::Chained(pool) => {
                let found = pool.chain().scrub(&progress).await?;
                let replaced = found.repaired + found.maps_replaced + found.labels_replaced;
                let is_repaired = replaced > 0 || found.checkpoint_replaced;
                let is_left = is_repaired && pool.chain().is_only_looked_at();
                Scrubbed {
                    report: serde_json::to_value(&found)?,
                    is_damaged: found.damaged > 0 || is_left,
                    is_repaired: is_repaired && !is_left,
                    gave_up: false,
                    lost: 0,
                }
            }
            AnyVolume::InPlace(it) => {
                let found = it.store.scrub(mend, &progress).await.map_err(InPlaceError::from)?;
                let gave_up = found.map_sectors > 0 && mend == Mend::Yes;
                Scrubbed {
                    report: serde_json::to_value(&found)?,
                    is_damaged: found.map_sectors > 0 && !gave_up || !found.lost.is_empty(),
                    is_repaired: gave_up,
                    gave_up,
                    lost: 0,
                }
            }
        };
        scrubbed.lost = lost_blocks(&scrubbed.report);
        Ok(scrubbed)
    }

    /// Scrubs the volume for a user: repairs bad copies, but gives up nothing. That needs a check of the
    /// filesystem too: fsck does both.
    pub(crate) async fn scrub_for_report(&self, report: &dyn Report) -> Outcome<Value> {
        let _one_at_a_time = self.begin_change()?;
        let mut found = self.scrub(Mend::No, true, report).await?.report;
        found["degraded"] = in_words_of(&self.attention()).into();
        found["replica"] = self.is_replica().into();
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use thalweg_store::{chain, inplace};

    use super::*;

    #[test]
    fn a_clean_report_is_one_line_and_every_field_is_told() {
        let chained = chain::ScrubReport { blocks: 7, ..Default::default() };
        assert_eq!(in_words(&json!(chained), true), ["7 blocks read"]);
        let in_place = inplace::ScrubReport { blocks: 7, unsummed: 2, ..Default::default() };
        assert_eq!(
            in_words(&json!(in_place), true),
            ["7 blocks read, 2 of them without a checksum"]
        );
        for clean in [json!(chained), json!(in_place)] {
            let fields = clean.as_object().unwrap().iter();
            for (field, value) in
                fields.filter(|(field, _)| !["blocks", "unsummed"].contains(&&***field))
            {
                let mut report = clean.clone();
                report[field] = match value {
                    Value::Bool(_) => true.into(),
                    Value::Array(_) => json!([40, 41]),
                    _ => 40.into(),
                };
                assert_eq!(in_words(&report, true).len(), 2, "{report}");
            }
        }
    }
}
