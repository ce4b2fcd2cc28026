//! Damage is noted in the superblock, for the processes that have the volume open later.

use super::format::Superblock;
use super::{InPlaceError, Inner};
use crate::block::StoreError;
use crate::copies;
use crate::device::Purpose;

impl Inner {
    /// Notes that a call met damage, if that is why it failed. The next pass of writeback records it.
    pub(super) fn note_damage(&self, error: &StoreError) {
        if error.is_damage() {
            self.medium.damage.note();
            self.medium.state.lock().counts.damaged += 1;
        }
    }

    /// Has the superblock say whether there is damage. Without it the store is as good as before, so a failure is only logged.
    pub(super) async fn record_damage(&self) {
        if self.medium.damage.to_record().is_none() {
            return;
        }
        if let Err(error) = self.write_damage().await {
            tracing::warn!(device = self.medium.data.name(), %error, "damage was not recorded");
        }
    }

    async fn write_damage(&self) -> Result<(), InPlaceError> {
        // Excludes a growth and the end, which write superblocks too.
        let _one = self.writing_back.lock().await;
        let Some(damaged) = self.medium.damage.to_record() else { return Ok(()) };
        self.check_growth()?;
        if let Some(why) = &self.medium.state.lock().poison {
            return Err(StoreError::Poisoned(why.clone()).into());
        }
        let newest = Superblock::read(&self.medium.data).await?;
        let next = Superblock { generation: newest.generation + 1, damaged, ..newest };
        copies::write(&next, &self.medium.data).await?;
        next.write_backups(&self.medium.data).await?;
        self.medium.data.flush(Purpose::Label).await?;
        self.medium.damage.recorded(damaged);
        Ok(())
    }
}
