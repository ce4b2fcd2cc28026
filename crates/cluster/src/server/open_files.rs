//! Which clients have a file open.

use std::sync::Arc;

use parking_lot::Mutex;
use smallvec::SmallVec;
use thalweg_env::HashMap;
use thalweg_fs::{Filesystem, Ino, OpenFlags};

use super::session::OpenFile;

#[derive(Debug)]
pub(super) struct OpenFiles {
    files: Arc<dyn Filesystem>,
    opens: Mutex<HashMap<Ino, SmallVec<[Opens; 2]>>>,
}

#[derive(Clone, Copy, Debug)]
struct Opens {
    session: u64,
    all: u32,
    reading: u32,
    writing: u32,
}

/// Which other sessions have a file open.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Others {
    pub(super) open: bool,
    pub(super) writing: bool,
}

impl OpenFiles {
    pub(super) fn new(files: &Arc<dyn Filesystem>) -> OpenFiles {
        OpenFiles { files: files.clone(), opens: Mutex::default() }
    }

    /// A session opens a file. [`OpenFiles::close`] must follow, or [`OpenFiles::remove`] if it fails.
    pub(super) fn open(&self, session: u64, ino: Ino, flags: OpenFlags) -> Others {
        let mut files = self.opens.lock();
        let opens = files.entry(ino).or_default();
        let others = || opens.iter().filter(|other| other.session != session);
        let found = Others {
            open: others().next().is_some(),
            writing: others().any(|other| other.writing > 0),
        };
        let own = match opens.iter().position(|it| it.session == session) {
            Some(own) => own,
            None => {
                opens.push(Opens { session, all: 0, reading: 0, writing: 0 });
                opens.len() - 1
            }
        };
        opens[own].all += 1;
        opens[own].reading += u32::from(flags.read);
        opens[own].writing += u32::from(flags.write);
        found
    }

    pub(super) fn is_open_by_others(&self, session: u64, ino: Ino) -> bool {
        let files = self.opens.lock();
        files.get(&ino).is_some_and(|opens| opens.iter().any(|it| it.session != session))
    }

    pub(super) fn others(&self, session: u64, ino: Ino) -> SmallVec<[u64; 2]> {
        let files = self.opens.lock();
        let opens = files.get(&ino).into_iter().flatten();
        opens.map(|it| it.session).filter(|it| *it != session).collect()
    }

    pub(super) fn is_open(&self, ino: Ino) -> bool {
        self.opens.lock().get(&ino).is_some_and(|opens| !opens.is_empty())
    }

    /// Whether a session has a file open to be read, and to be written.
    pub(super) fn of(&self, session: u64, ino: Ino) -> (bool, bool) {
        let files = self.opens.lock();
        let own = files.get(&ino).and_then(|opens| opens.iter().find(|it| it.session == session));
        own.map_or((false, false), |own| (own.reading > 0, own.writing > 0))
    }

    pub(super) async fn close(&self, session: u64, file: OpenFile) {
        self.remove(session, file.ino, file.flags);
        self.files.release(file.ino, file.at).await;
    }

    pub(super) fn remove(&self, session: u64, ino: Ino, flags: OpenFlags) {
        let mut files = self.opens.lock();
        let Some(opens) = files.get_mut(&ino) else { return };
        if let Some(own) = opens.iter_mut().find(|it| it.session == session) {
            let (reading, writing) = (u32::from(flags.read), u32::from(flags.write));
            let was_opened = own.all > 0 && own.reading >= reading && own.writing >= writing;
            assert!(was_opened, "a session closes a file more often than it has opened it");
            own.all -= 1;
            own.reading -= reading;
            own.writing -= writing;
        }
        opens.retain(|it| it.all > 0);
        if opens.is_empty() {
            files.remove(&ino);
        }
    }
}
