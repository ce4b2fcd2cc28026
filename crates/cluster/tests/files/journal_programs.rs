//! Programs on clients with journals, and without: they use the same names and files, and note what they find.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use rand::RngExt;
use thalweg_cluster::client::Client;
use thalweg_env::{Env, Rng, Time};
use thalweg_fs::{
    Caller, Cookie, Filesystem, FsError, Ino, Lookup, Node, Rename, WriteAt, WriteHow,
};

use crate::journal_model::*;
use crate::linear::Recorded;
use crate::scene::*;

/// What a life is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// Connections break, and the network is cut for less than a lease.
    Short,
    /// The server's machine crashes, too.
    Servers,
    /// And the machines of clients with journals, which are back within a lease.
    Restarts,
    /// Clients with journals are cut off, or down, for longer than a lease or their session.
    Long,
}

/// Whether contents of files are objects in a life.
pub(crate) fn has_objects(seed: u64) -> bool {
    seed % 8 == 5
}

/// The calls, in the order of their beginnings.
pub(crate) type History = Arc<Mutex<BTreeMap<u64, Recorded<Op>>>>;

/// Of one client on one mount.
pub(crate) struct Program {
    pub(crate) env: Env,
    pub(crate) rng: Rng,
    pub(crate) machine: usize,
    pub(crate) client: Client,
    pub(crate) directory: Ino,
    pub(crate) files: [Ino; FILES],
    pub(crate) history: History,
    pub(crate) left: Arc<AtomicUsize>,
    pub(crate) kind: Kind,
}

/// Adds a call that has no answer yet.
pub(crate) fn begin(history: &History, client: usize, start: Time, op: Op) -> u64 {
    let mut history = history.lock();
    let number = history.last_key_value().map_or(0, |it| it.0 + 1);
    history.insert(number, Recorded { client, start, end: None, op });
    number
}

impl Program {
    pub(crate) async fn run(mut self) {
        while self.left.load(Ordering::Relaxed) > 0 {
            self.left.fetch_sub(1, Ordering::Relaxed);
            // Some calls follow one another, so that their client has what it uses to itself.
            let pause = match self.rng.random_range(0..10) {
                0..3 if self.kind == Kind::Long => 3_000_000,
                0..3 => 600_000,
                3..5 => 30_000,
                _ => 1_000,
            };
            self.env.sleep(Duration::from_micros(self.rng.random_range(0..pause))).await;
            match self.rng.random_range(0..12) {
                0..5 => self.use_name().await,
                5..10 => self.use_file().await,
                _ => self.sync().await,
            }
        }
    }

    /// A call that changes something has begun.
    fn begins(&self, op: Op) -> u64 {
        begin(&self.history, self.machine, self.env.now(), op)
    }

    /// It has this answer; without one it had no effect.
    fn ends(&self, number: u64, op: Option<Op>) {
        let mut history = self.history.lock();
        match op {
            Some(op) => {
                let call = history.get_mut(&number).unwrap();
                (call.op, call.end) = (op, Some(self.env.now()));
            }
            None => drop(history.remove(&number)),
        }
    }

    /// A call that has failed otherwise than by its rules.
    async fn failed(&self, number: u64, error: FsError) {
        // Without an answer it may have had its effect.
        if !matches!(error, FsError::Store(_)) {
            self.ends(number, None);
            self.find_again().await;
        }
    }

    async fn find_again(&self) {
        let _ = find_all(&self.client).await;
    }

    async fn use_name(&mut self) {
        if self.rng.random_bool(0.4) {
            self.list().await;
        }
        let (a, b) = (self.rng.random_range(0..4_u8), self.rng.random_range(0..4_u8));
        let (name, other) = ([b'n', b'0' + a], [b'n', b'0' + b]);
        let (client, directory) = (&self.client, self.directory);
        match self.rng.random_range(0..8) {
            0..3 => {
                let call = self.begins(Op::Create(a, Some(UNKNOWN)));
                match client.create(directory, &name, &new(Node::File)).await {
                    Ok(made) => self.ends(call, Some(Op::Create(a, Some(made.ino.0)))),
                    Err(FsError::Exists) => self.ends(call, Some(Op::Create(a, None))),
                    Err(error) => self.failed(call, error).await,
                }
            }
            3..5 => {
                let call = self.begins(Op::Unlink(a, true));
                match client.unlink(directory, &name).await {
                    Ok(()) => self.ends(call, Some(Op::Unlink(a, true))),
                    Err(FsError::NotFound) => self.ends(call, Some(Op::Unlink(a, false))),
                    Err(error) => self.failed(call, error).await,
                }
            }
            5 if a != b => {
                let call = self.begins(Op::Rename(a, b, true));
                let names = ((directory, &name[..]), (directory, &other[..]));
                match client.rename(names.0, names.1, Rename::Replace).await {
                    Ok(()) => self.ends(call, Some(Op::Rename(a, b, true))),
                    Err(FsError::NotFound) => self.ends(call, Some(Op::Rename(a, b, false))),
                    Err(error) => self.failed(call, error).await,
                }
            }
            _ => self.look(a).await,
        }
    }

    async fn look(&self, name: u8) {
        let call = self.begins(Op::Look(name, None));
        match self.client.lookup(self.directory, &[b'n', b'0' + name]).await {
            Ok(Lookup::Found(found)) => self.ends(call, Some(Op::Look(name, Some(found.ino.0)))),
            Ok(Lookup::Absent(_)) => self.ends(call, Some(Op::Look(name, None))),
            Err(_) => {
                self.ends(call, None);
                self.find_again().await;
            }
        }
    }

    async fn list(&self) {
        let mut from = Cookie::START;
        while let Ok(some) = self.client.read_directory(self.directory, from, 100, false).await
            && let Some(last) = some.last()
        {
            from = last.cookie;
        }
    }

    async fn use_file(&mut self) {
        // Each client has a file that it uses more than the others do.
        let which = match self.rng.random_bool(0.5) {
            true => self.machine % FILES,
            false => self.rng.random_range(0..FILES),
        };
        let (client, file, which) = (&self.client, self.files[which], which as u8);
        // A file that is open may become its client's own.
        let opened = match self.rng.random_bool(0.6) {
            true => client.open(&Caller::default(), file, WRITING).await.ok(),
            false => None,
        };
        let number = self.rng.random::<u64>();
        let data = vec![Bytes::copy_from_slice(&number.to_le_bytes())];
        match self.rng.random_range(0..8) {
            0..4 => {
                let call = self.begins(Op::Write(which, number));
                match client.write(file, WriteAt::Offset(0), data, WriteHow::default()).await {
                    Ok(_) => self.ends(call, Some(Op::Write(which, number))),
                    Err(error) => self.failed(call, error).await,
                }
            }
            4 => {
                let call = self.begins(Op::Append(which, None));
                match client.write(file, WriteAt::End, data, WriteHow::default()).await {
                    Ok(at) => self.ends(call, Some(Op::Append(which, Some(at)))),
                    Err(error) => self.failed(call, error).await,
                }
            }
            5..7 => self.read(which).await,
            _ => self.size(which).await,
        }
        if let Some(opened) = opened {
            self.client.release(file, opened.handle).await;
        }
    }

    async fn read(&self, file: u8) {
        let call = self.begins(Op::Read(file, 0));
        match self.client.read(self.files[usize::from(file)], 0, 8).await {
            Ok(read) => {
                let bytes: [u8; 8] = read.concat().try_into().unwrap();
                self.ends(call, Some(Op::Read(file, u64::from_le_bytes(bytes))));
            }
            Err(_) => {
                self.ends(call, None);
                self.find_again().await;
            }
        }
    }

    async fn size(&self, file: u8) {
        let call = self.begins(Op::Size(file, 0));
        match self.client.attributes(self.files[usize::from(file)]).await {
            Ok(found) => self.ends(call, Some(Op::Size(file, found.size))),
            Err(_) => {
                self.ends(call, None);
                self.find_again().await;
            }
        }
    }

    async fn sync(&mut self) {
        let which = self.rng.random_range(0..FILES);
        let (ino, set) = match self.rng.random_range(0..5) {
            0..3 => (Some(self.files[which]), file_set(which as u8)),
            3 => (Some(self.directory), (1 << NAMES) - 1),
            _ => (None, Set::MAX),
        };
        let call = self.begins(Op::Sync(set));
        let synced = match ino {
            Some(ino) => self.client.sync(ino, false).await,
            None => self.client.sync_all().await,
        };
        self.ends(call, synced.ok().map(|()| Op::Sync(set)));
    }

    /// The names and files in the end.
    pub(crate) async fn look_at_all(self) {
        self.find_again().await;
        for name in 0..NAMES as u8 {
            self.look(name).await;
        }
        for file in 0..FILES as u8 {
            self.read(file).await;
            self.size(file).await;
        }
    }
}

/// The directory and the files, by their names; as a kernel does, the client refers to them.
pub(crate) async fn find_all(client: &Client) -> Result<(Ino, [Ino; FILES]), FsError> {
    let directory = client.find(Ino::ROOT, b"d").await?.ino;
    client.reference(directory);
    let mut files = [Ino::ROOT; FILES];
    for (number, file) in files.iter_mut().enumerate() {
        *file = client.find(Ino::ROOT, format!("f{number}").as_bytes()).await?.ino;
        client.reference(*file);
    }
    Ok((directory, files))
}
