//! Why an open volume takes no writes.

use super::opened::Opened;
use crate::failure::{Failure, Outcome};

/// Why a volume takes no writes, whatever is stored on it.
#[derive(Debug)]
pub(crate) struct WhyReadOnly {
    /// The reason.
    pub(crate) what: String,
    /// The next step.
    pub(crate) help: String,
}

impl Opened {
    /// Refuses writers of a volume whose place a replica has taken.
    pub(crate) fn refuse_if_fenced(&self) -> Outcome<()> {
        let Some(fence) = self.chained().and_then(|pool| pool.chain().label().fence) else {
            return Ok(());
        };
        let (place, term) = (self.target.place().display(), fence.term);
        Err(Failure::new(format!(
            "{} was fenced: a replica of it was promoted, with term {term}, and is the volume now",
            self.target.name
        ))
        .help(format!("use that one; {place}@fenced-{term} is the state that this one had")))
    }

    /// Why the volume takes no writes; `None` if it takes them. Partitions are no reason here: they keep only writers of raw
    /// blocks out.
    pub(crate) async fn why_read_only(&self) -> Option<WhyReadOnly> {
        let (place, name) = (self.target.place().display(), &self.target.name);
        if let Some(pool) = self.chained().filter(|pool| pool.chain().label().follows) {
            let primary = match pool.follows().await {
                Some(address) => format!(" of {address}"),
                None => String::new(),
            };
            return Some(WhyReadOnly {
                what: format!("{name} is a replica{primary}, and only its primary is written to"),
                help: format!(
                    "write there; if that one is lost, thalweg replica promote {place} makes a primary of this one"
                ),
            });
        }
        self.is_read_only().then(|| WhyReadOnly {
            what: format!("the process that has {name} open has opened it read-only"),
            help: "end that process, for example a mount with -o ro".to_owned(),
        })
    }
}
