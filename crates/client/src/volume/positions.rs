//! Positions of a volume.

use std::time::Duration;

use thalweg_store::block::Position;
use thalweg_store::txn::TxnError;

use super::Volume;

impl Volume {
    /// The name of the newest version on every machine that has a replica of the volume; `None` if it has none.
    ///
    /// A program that has written at the primary reads its write at a replica:
    ///
    /// ```no_run
    /// use std::path::Path;
    /// use thalweg_client::Volume;
    ///
    /// let primary = Volume::open(Path::new("/srv/vol"))?;
    /// let replica = Volume::open(Path::new("thalweg://standby/copy"))?;
    /// if let Some(position) = primary.position()? {
    ///     replica.reached(position, None)?;
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Transact::position`](thalweg_store::txn::Transact::position).
    pub fn position(&self) -> Result<Option<Position>, TxnError> {
        self.run(self.transact.position())
    }

    /// Waits until the volume has durably reached a position, for at most `within`; says whether it has.
    ///
    /// # Errors
    /// As [`Transact::reached`](thalweg_store::txn::Transact::reached).
    pub fn reached(&self, position: Position, within: Option<Duration>) -> Result<bool, TxnError> {
        self.run(self.transact.reached(position, within))
    }
}
