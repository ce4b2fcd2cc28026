//! Changes that were made elsewhere, applied in bulk.

use std::sync::Arc;

use thalweg_env::HashSet;
use thalweg_store::txn::Transaction;

use super::Local;
use super::effects::Effects;
use super::format::encode_time;
use super::op::Op;
use crate::error::FsError;
use crate::event::{Deed, Event};
use crate::filesystem::WriteAt;

impl Local {
    /// [`Ledger::apply`](crate::Ledger::apply).
    ///
    /// # Errors
    /// [`FsError::NotSupported`] for a change of bytes or of a size where contents are kept elsewhere: these do not change
    /// together with the names.
    pub(super) async fn apply_all(&self, events: &[Event]) -> Result<(), FsError> {
        if self.inner.elsewhere.is_some() && events.iter().any(|event| changes_bytes(&event.deed)) {
            return Err(FsError::NotSupported);
        }
        self.change(async |txn| {
            if let Some(aside) = txn.aside() {
                aside.make_large();
            }
            Ok(((), self.apply_in(&txn, events).await?))
        })
        .await
    }

    async fn apply_in(
        &self,
        txn: &Arc<dyn Transaction>,
        events: &[Event],
    ) -> Result<Effects, FsError> {
        let mut effects = Effects::default();
        // A call of its own does not see its writes of bytes. So the bytes of a file are changed once in each.
        let mut written = HashSet::default();
        let mut op = self.op(txn);
        let (recorder, now) = (op.recorder.take(), op.now);
        for Event { time, deed } in events {
            if changes_bytes(deed) && !written.insert(deed.ino()) {
                effects.add(op.finish().await?);
                op = self.op(txn);
                op.recorder = None;
                written.clear();
                written.insert(deed.ino());
            }
            op.now = encode_time(*time);
            op.apply(deed).await?;
            [Some(deed.ino()), deed.made()]
                .into_iter()
                .flatten()
                .for_each(|it| op.end_change(it.0));
        }
        (op.recorder, op.now) = (recorder, now);
        effects.add(op.finish().await?);
        Ok(effects)
    }
}

fn changes_bytes(deed: &Deed) -> bool {
    match deed {
        Deed::Write { .. } => true,
        Deed::SetAttributes { change, .. } => change.size.is_some(),
        Deed::Create { .. } => false,
    }
}

impl Op<'_> {
    async fn apply(&mut self, deed: &Deed) -> Result<(), FsError> {
        match deed {
            Deed::Create { parent, name, new, number } => {
                let next = self.next_number().await?;
                self.check_number(number.0, next).await?;
                self.create(parent.0, name, new, number.0).await?;
            }
            Deed::SetAttributes { ino, change } => {
                self.set_attributes(ino.0, change).await?;
            }
            Deed::Write { ino, offset, data, clear_suid } => {
                let at = WriteAt::Offset(*offset);
                self.write(ino.0, at, vec![data.clone()], *clear_suid).await?;
            }
        }
        Ok(())
    }
}
