//! Exports: volumes under names.

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use thalweg_env::watch;

use parking_lot::Mutex;
use thalweg_store::volume::{Volume, VolumeRef};

use crate::error::ServerError;
use crate::protocol::{Limits, MAX_NAME, MAX_PAYLOAD, transmission_flag as flag};

/// A value that a connection to an export holds until it ends.
pub type Usage = Box<dyn Any + Send + Sync>;

/// A volume under a name.
#[derive(Clone)]
pub struct Export {
    name: String,
    description: String,
    is_default: bool,
    volume: VolumeRef,
    on_use: Option<Arc<dyn Fn() -> Usage + Send + Sync>>,
}

impl fmt::Debug for Export {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Export").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Export {
    /// Serves `volume` as `name`. The empty name is the default export.
    pub fn new(name: impl Into<String>, volume: VolumeRef) -> Export {
        let (name, description) = (name.into(), String::new());
        Export { name, description, is_default: false, volume, on_use: None }
    }

    /// Calls `enter` for each client that begins to use the export while it is writable; its result is
    /// dropped when the client leaves.
    #[must_use]
    pub fn on_use(mut self, enter: impl Fn() -> Usage + Send + Sync + 'static) -> Export {
        self.on_use = Some(Arc::new(enter));
        self
    }

    /// A text for people who list the exports.
    #[must_use]
    pub fn description(mut self, text: impl Into<String>) -> Export {
        self.description = text.into();
        self
    }

    /// Makes this the default: the export of a client that names none. Without a default, a lone export is
    /// the default.
    #[must_use]
    pub fn default_export(mut self) -> Export {
        self.is_default = true;
        self
    }

    fn check(&self) -> Result<(), ServerError> {
        let refuse = |reason: &str| {
            Err(ServerError::Export { name: self.name.clone(), reason: reason.to_owned() })
        };
        if self.name.len() > MAX_NAME || self.description.len() > MAX_NAME {
            return refuse("its name or description is longer than 4096 bytes; shorten it");
        }
        if self.name.contains('\0') || self.description.contains('\0') {
            return refuse("its name or description holds a NUL character; remove it");
        }
        let block = self.volume.min_block();
        if !block.is_power_of_two() || block > 65_536 {
            return refuse("its smallest block is not a power of two up to 64 KiB");
        }
        Ok(())
    }
}

/// An export while it is served.
#[derive(Debug)]
pub(crate) struct Served {
    export: Export,
    stop: watch::Sender<bool>,
}

impl Served {
    pub(crate) fn name(&self) -> &str {
        &self.export.name
    }

    pub(crate) fn description(&self) -> &str {
        &self.export.description
    }

    pub(crate) fn volume(&self) -> &VolumeRef {
        &self.export.volume
    }

    /// Registers a client that begins to use the export.
    pub(crate) fn enter(&self) -> Option<Usage> {
        let enter = self.export.on_use.as_ref().filter(|_| !self.volume().is_read_only())?;
        Some(enter())
    }

    /// A receiver that turns true when the export is removed. Each receiver counts as a user of the export.
    pub(crate) fn stop(&self) -> watch::Receiver<bool> {
        self.stop.subscribe()
    }

    /// Size in bytes, rounded down to whole smallest blocks: the rest could not be addressed.
    pub(crate) fn size(&self) -> u64 {
        let volume = self.volume();
        volume.size() / u64::from(volume.min_block()) * u64::from(volume.min_block())
    }

    /// The limits of a connection's requests. The volume's size may change between calls.
    pub(crate) fn limits(&self, structured: bool, allocation: bool) -> Limits {
        let volume = self.volume();
        Limits {
            size: volume.size(),
            min_block: volume.min_block(),
            preferred_block: preferred_block(volume.as_ref()),
            read_only: volume.is_read_only(),
            structured,
            allocation,
        }
    }

    pub(crate) fn transmission_flags(&self, structured: bool) -> u16 {
        let always = flag::HAS_FLAGS
            | flag::SEND_FLUSH
            | flag::SEND_FUA
            | flag::CAN_MULTI_CONN
            | flag::SEND_CACHE;
        let writable = flag::SEND_TRIM | flag::SEND_WRITE_ZEROES | flag::SEND_FAST_ZERO;
        let access = if self.volume().is_read_only() { flag::READ_ONLY } else { writable };
        always | access | if structured { flag::SEND_DF } else { 0 }
    }
}

/// The volume's preferred block as the protocol allows it: a power of two, at least 512 bytes and
/// the smallest block, at most the longest payload.
pub(crate) fn preferred_block(volume: &dyn Volume) -> u32 {
    let least = volume.min_block().max(512);
    volume.preferred_block().clamp(least, MAX_PAYLOAD).next_power_of_two()
}

/// All exports of a server.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    exports: Mutex<BTreeMap<String, Arc<Served>>>,
}

impl Registry {
    pub(crate) fn add(&self, export: Export) -> Result<(), ServerError> {
        export.check()?;
        let mut exports = self.exports.lock();
        let conflict = exports
            .values()
            .find(|served| {
                served.name() == export.name || (served.export.is_default && export.is_default)
            })
            .map(|served| served.name().to_owned());
        if let Some(other) = conflict {
            let reason = format!(
                "export {other:?} has the same name or is the default already; remove it first"
            );
            return Err(ServerError::Export { name: export.name, reason });
        }
        let served = Served { export, stop: watch::Sender::new(false) };
        exports.insert(served.name().to_owned(), Arc::new(served));
        Ok(())
    }

    /// Removes an export and asks its connections to end.
    pub(crate) fn remove(&self, name: &str) -> Option<Arc<Served>> {
        let served = self.exports.lock().remove(name)?;
        served.stop.send_replace(true);
        Some(served)
    }

    /// The export that `name` refers to; the default for an empty name.
    pub(crate) fn find(&self, name: &str) -> Option<Arc<Served>> {
        let exports = self.exports.lock();
        if let Some(served) = exports.get(name) {
            return Some(served.clone());
        }
        if !name.is_empty() {
            return None;
        }
        let lone = if exports.len() == 1 { exports.values().next() } else { None };
        exports.values().find(|served| served.export.is_default).or(lone).cloned()
    }

    pub(crate) fn all(&self) -> Vec<Arc<Served>> {
        self.exports.lock().values().cloned().collect()
    }
}

impl Served {
    /// Returns when no connection uses the export any more.
    pub(crate) async fn unused(&self) {
        self.stop.closed().await;
    }
}
