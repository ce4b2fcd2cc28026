//! Notes of what sessions use that clients may have changed in their journals, which are away.

use thalweg_fs::FsError;
use thalweg_fs::mutation::Mutation;
use thalweg_fs::session_table::Held;

use super::foreign_use::Use;
use super::session::Session;
use super::sessions::Sessions;

impl Sessions {
    /// A session has used inodes, or is about to change them: what clients may have changed of these in their journals that were away.
    /// When this returns it is on record.
    pub(super) async fn note_uses(&self, by: u64, uses: impl FnOnce() -> Vec<Use>) {
        if !self.base.foreign_uses.has_begun() {
            return;
        }
        let uses = uses();
        let may_conflict = |it: &Session| it.serial != by && !it.journal.widened(&uses).is_empty();
        for session in self.matching(may_conflict) {
            let _turn = session.journal.noting.lock().await;
            let used = session.journal.widened(&uses);
            let held = Held { used, ..Held::default() };
            while let Some(table) = self.base.files.session_table() {
                let Err(error) = table.hold(session.serial, &held).await else { break };
                if session.lock().has_ended {
                    break;
                }
                tracing::error!(%error, "the use of what is a client's that is away cannot be noted; it is tried again");
                self.base.env.sleep(self.base.options.lease / 4).await;
            }
            session.journal.note_used(held.used);
        }
    }

    /// The client of a session is back, and is about to make inodes: they were not there when the filesystem was used without a server, if it
    /// was. When this returns, that is on record.
    ///
    /// # Errors
    /// [`FsError::Invalid`] for a number that an inode has; those of the transaction.
    pub(super) async fn note_made(
        &self,
        session: &Session,
        mutations: &[Mutation],
    ) -> Result<(), FsError> {
        let made = session.journal.unnoted(mutations);
        let Some(table) = self.base.files.session_table().filter(|_| !made.is_empty()) else {
            return Ok(());
        };
        for ino in &made {
            match self.base.files.attributes(*ino).await {
                Err(FsError::Stale | FsError::NotFound) => {}
                Ok(_) => return Err(FsError::Invalid("an inode has the number")),
                Err(error) => return Err(error),
            }
        }
        let held = Held { made, ..Held::default() };
        table.hold(session.serial, &held).await?;
        session.journal.note_made(held.made);
        Ok(())
    }
}
