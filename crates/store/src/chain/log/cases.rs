//! The decisions of recovery about a log's map, as tables of cases, without I/O.
//!
//! A log is *open* as long as every sector so far continued it. It ends at the first sector that does not.
//! Sectors of it behind that end are *stale* if a crash explains the gap before them: their writes were
//! under way, and the gap's were not finished. Otherwise the gap is damage, and recovery refuses.
//!
//! Each combination of conditions matches exactly one case of its table.

/// A map sector, relative to the use of its segment in which recovery expects the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SectorClass {
    /// Whole, and of this use.
    Own,
    /// Whole, of another use of the segment or of another log.
    Other,
    /// Whole, of a later use of the segment, which was opened after the checkpoint.
    Newer,
    /// Not whole, and was of this use. A sector is written whole or not at all, so no crash explains it.
    Damaged,
    /// Never written, or a remnant of another volume.
    Blank,
    /// No copy can be read.
    Unreadable,
}

/// The conditions of [`on_sector`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SectorConditions {
    pub(super) class: SectorClass,
    /// Whether the log is open before this sector.
    pub(super) is_open: bool,
    /// Whether it has as many entries as fit, so that the log may continue behind it.
    pub(super) is_full: bool,
    /// Whether it says that an entry was durable which recovery has not read before it.
    pub(super) shows_loss: bool,
}

/// What recovery does with a sector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SectorDecision {
    /// Appends its entries; the log stays open.
    Append,
    /// Appends its entries, and ends the log.
    AppendLast,
    /// Ends the log before it.
    End,
    /// Ignores it.
    Skip,
    /// Overwrites it later, so that no new entry of the log is joined to it.
    Overwrite,
    /// Refuses: durable entries of the map are damaged.
    RefuseDamage,
    /// Refuses: the newest checkpoint is missing.
    RefuseCheckpoint,
}

/// The conditions of [`on_segment`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SegmentConditions {
    /// Whether a whole sector shows that the log used this segment.
    pub(super) is_used: bool,
    /// Whether the log is open at the end of the segment before.
    pub(super) is_open: bool,
    /// Whether a sector is unreadable or looks like a damaged one of this volume.
    pub(super) has_ruins: bool,
}

/// What recovery does with a segment to which the log leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SegmentDecision {
    /// Reads its sectors.
    Read,
    /// Ends the log before it.
    End,
    /// Refuses: durable entries of the map may be damaged.
    RefuseDamage,
}

/// One line of a table. `None` stands for either value.
struct SectorCase(SectorClass, Option<bool>, Option<bool>, Option<bool>, SectorDecision);

/// See [`SectorCase`].
struct SegmentCase(Option<bool>, Option<bool>, Option<bool>, SegmentDecision);

const YES: Option<bool> = Some(true);
const NO: Option<bool> = Some(false);
const ANY: Option<bool> = None;

#[rustfmt::skip]
const SECTOR_CASES: [SectorCase; 13] = [
    //         class                    open full loss
    SectorCase(SectorClass::Own,        YES, YES, ANY, SectorDecision::Append),
    SectorCase(SectorClass::Own,        YES, NO,  ANY, SectorDecision::AppendLast),
    SectorCase(SectorClass::Own,        NO,  ANY, NO,  SectorDecision::Overwrite),
    SectorCase(SectorClass::Own,        NO,  ANY, YES, SectorDecision::RefuseDamage),
    SectorCase(SectorClass::Other,      YES, ANY, ANY, SectorDecision::End),
    SectorCase(SectorClass::Other,      NO,  ANY, ANY, SectorDecision::Skip),
    SectorCase(SectorClass::Newer,      ANY, ANY, ANY, SectorDecision::RefuseCheckpoint),
    SectorCase(SectorClass::Damaged,    YES, ANY, ANY, SectorDecision::RefuseDamage),
    SectorCase(SectorClass::Damaged,    NO,  ANY, ANY, SectorDecision::Overwrite),
    SectorCase(SectorClass::Blank,      YES, ANY, ANY, SectorDecision::End),
    SectorCase(SectorClass::Blank,      NO,  ANY, ANY, SectorDecision::Skip),
    SectorCase(SectorClass::Unreadable, YES, ANY, ANY, SectorDecision::RefuseDamage),
    SectorCase(SectorClass::Unreadable, NO,  ANY, ANY, SectorDecision::Skip),
];

#[rustfmt::skip]
const SEGMENT_CASES: [SegmentCase; 4] = [
    //          used open ruins
    SegmentCase(YES, ANY, ANY, SegmentDecision::Read),
    SegmentCase(NO,  YES, YES, SegmentDecision::RefuseDamage),
    SegmentCase(NO,  YES, NO,  SegmentDecision::End),
    SegmentCase(NO,  NO,  ANY, SegmentDecision::End),
];

fn fits(wanted: Option<bool>, found: bool) -> bool {
    wanted.is_none_or(|wanted| wanted == found)
}

impl SectorCase {
    fn matches(&self, found: &SectorConditions) -> bool {
        self.0 == found.class
            && fits(self.1, found.is_open)
            && fits(self.2, found.is_full)
            && fits(self.3, found.shows_loss)
    }
}

impl SegmentCase {
    fn matches(&self, found: &SegmentConditions) -> bool {
        fits(self.0, found.is_used) && fits(self.1, found.is_open) && fits(self.2, found.has_ruins)
    }
}

/// The decision about the next sector of a segment. Without a case it would refuse.
pub(super) fn on_sector(found: &SectorConditions) -> SectorDecision {
    let case = SECTOR_CASES.iter().find(|case| case.matches(found));
    case.map_or(SectorDecision::RefuseDamage, |case| case.4)
}

/// The decision about the next segment of a log. Without a case it would refuse.
pub(super) fn on_segment(found: &SegmentConditions) -> SegmentDecision {
    let case = SEGMENT_CASES.iter().find(|case| case.matches(found));
    case.map_or(SegmentDecision::RefuseDamage, |case| case.3)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLASSES: [SectorClass; 6] = [
        SectorClass::Own,
        SectorClass::Other,
        SectorClass::Newer,
        SectorClass::Damaged,
        SectorClass::Blank,
        SectorClass::Unreadable,
    ];

    /// The bits of `number` as conditions.
    fn bits(number: u32) -> [bool; 3] {
        [0, 1, 2].map(|bit| number >> bit & 1 == 1)
    }

    fn of_sectors() -> Vec<SectorConditions> {
        let of_class = |class| {
            (0..8).map(bits).map(move |[is_open, is_full, shows_loss]| SectorConditions {
                class,
                is_open,
                is_full,
                shows_loss,
            })
        };
        CLASSES.into_iter().flat_map(of_class).collect()
    }

    fn of_segments() -> Vec<SegmentConditions> {
        let all = (0..8).map(bits);
        all.map(|[is_used, is_open, has_ruins]| SegmentConditions { is_used, is_open, has_ruins })
            .collect()
    }

    #[test]
    fn each_combination_matches_exactly_one_case_and_each_case_some() {
        for found in of_sectors() {
            let cases = SECTOR_CASES.iter().filter(|case| case.matches(&found)).count();
            assert_eq!(cases, 1, "{found:?}");
        }
        for found in of_segments() {
            let cases = SEGMENT_CASES.iter().filter(|case| case.matches(&found)).count();
            assert_eq!(cases, 1, "{found:?}");
        }
        let used = |case: &SectorCase| of_sectors().iter().any(|found| case.matches(found));
        assert!(SECTOR_CASES.iter().all(used));
        let used = |case: &SegmentCase| of_segments().iter().any(|found| case.matches(found));
        assert!(SEGMENT_CASES.iter().all(used));
    }

    /// What must hold whatever the tables say, as rules rather than as cases.
    #[test]
    fn each_decision_follows_the_rules() {
        use SectorDecision::*;
        for found in of_sectors() {
            let SectorConditions { class, is_open, is_full, shows_loss } = found;
            let own = class == SectorClass::Own;
            let decision = on_sector(&found);
            let appends = matches!(decision, Append | AppendLast);
            assert_eq!(
                appends,
                own && is_open,
                "entries count as long as the log is open: {found:?}"
            );
            assert_eq!(decision == Append, appends && is_full, "a part ends the log: {found:?}");
            let explained = matches!(class, SectorClass::Other | SectorClass::Blank);
            assert_eq!(decision == End, is_open && explained, "a crash ends a log: {found:?}");
            let harmed = matches!(class, SectorClass::Damaged | SectorClass::Unreadable);
            let lost = (is_open && harmed) || (!is_open && own && shows_loss);
            assert_eq!(decision == RefuseDamage, lost, "damage is no crash: {found:?}");
            let newer = class == SectorClass::Newer;
            assert_eq!(decision == RefuseCheckpoint, newer, "{found:?}");
            let joins = !is_open && (own || class == SectorClass::Damaged);
            assert_eq!(decision == Overwrite, joins && !lost, "no remnant is met again: {found:?}");
        }
        for found in of_segments() {
            let SegmentConditions { is_used, is_open, has_ruins } = found;
            let decision = on_segment(&found);
            assert_eq!(decision == SegmentDecision::Read, is_used, "{found:?}");
            let lost = !is_used && is_open && has_ruins;
            assert_eq!(decision == SegmentDecision::RefuseDamage, lost, "{found:?}");
        }
    }
}
