//! A user that calls a filesystem at random.

use std::time::Duration;

use bytes::Bytes;
use rand::RngExt;
use thalweg_env::{Env, Rng};
use thalweg_fs::local::LocalFs;
use thalweg_fs::{
    Allocation, AttributeChange, Filesystem, Ino, Node, Rename, SetXattr, WriteAt, WriteHow,
};
use thalweg_store::txn::{Begin, Durability};

use super::rig::Volume;
use super::state::{Passing, State};
use crate::support::*;

/// A filesystem and its user.
pub(crate) struct User {
    env: Env,
    pub(crate) volume: Volume,
    pub(crate) fs: LocalFs,
    directories: Vec<Ino>,
    pub(crate) files: Vec<Ino>,
    /// The writes of the last call, if it was a transaction of several.
    passing: Vec<Passing>,
    rng: Rng,
    made: u64,
}

impl User {
    /// Begins with an empty filesystem, and a file that stays open to the end.
    pub(crate) async fn new(env: &Env, volume: Volume) -> User {
        let fs = volume.files(env).await;
        let file = create(&fs, ROOT, "open").await;
        fs.reference(file);
        fs.sync_all().await.unwrap();
        let (rng, directories, files) = (env.rng(), vec![Ino::ROOT], vec![file]);
        User { env: env.clone(), volume, fs, directories, files, passing: Vec::new(), rng, made: 0 }
    }

    /// Reads the state that the last call led to.
    pub(crate) async fn see(&mut self) -> State {
        let passing = std::mem::take(&mut self.passing);
        State { passing, ..State::see(&self.fs, &self.files).await }
    }

    fn pick(&mut self, among: &[Ino]) -> Ino {
        among[self.rng.random_range(0..among.len())]
    }

    fn name(&mut self) -> Vec<u8> {
        format!("{}", self.rng.random_range(0..12)).into_bytes()
    }

    /// One random call, which is one transaction; returns whether it is durable. Invalid calls change
    /// nothing.
    pub(crate) async fn step(&mut self) -> bool {
        // No two changes come at the same time, so that metadata tells them apart.
        self.env.sleep(Duration::from_micros(1)).await;
        let (directories, files) = (self.directories.clone(), self.files.clone());
        let (dir, other) = (self.pick(&directories), self.pick(&directories));
        let file = self.pick(&files);
        let (name, to) = (self.name(), self.name());
        let at = self.rng.random_range(0..60_000);
        let len = [10, 3000, 200_000][self.rng.random_range(0..3)];
        let how = WriteHow { sync: self.rng.random_bool(0.2), clear_suid: false };
        self.made += 1;
        let data = vec![Bytes::from(pattern(self.made, self.rng.random_range(1..=len)))];
        let fs = self.fs.clone();
        match self.rng.random_range(0..24) {
            0..4 => {
                if let Ok(made) = fs.create(dir, &name, &node(Node::File, 0o644)).await {
                    self.files.push(made.ino);
                }
            }
            4..6 => {
                if let Ok(made) = fs.create(dir, &name, &node(Node::Directory, 0o755)).await {
                    self.directories.push(made.ino);
                }
            }
            6 => {
                drop(fs.create(dir, &name, &node(Node::Symlink(name.clone().into()), 0o777)).await)
            }
            7 => drop(fs.link(file, dir, &name).await),
            8..10 => drop(fs.unlink(dir, &name).await),
            10 => drop(fs.remove_directory(dir, &name).await),
            11..13 => {
                let how = [Rename::Replace, Rename::Exchange][self.rng.random_range(0..2)];
                drop(fs.rename((dir, &name), (other, &to), how).await);
            }
            13..17 => {
                return fs.write(file, WriteAt::Offset(at), data, how).await.is_ok() && how.sync;
            }
            17..19 => return fs.write(file, WriteAt::End, data, how).await.is_ok() && how.sync,
            19 => {
                let change = AttributeChange { size: Some(at), ..AttributeChange::default() };
                drop(fs.set_attributes(file, &change).await);
            }
            20 => {
                let how = match self.rng.random_range(0..3) {
                    0 => Allocation::Punch,
                    1 => Allocation::Reserve { keep_size: false },
                    _ => Allocation::Zero { keep_size: false },
                };
                drop(fs.allocate(file, at, len as u64, how).await);
            }
            21 => drop(fs.set_xattr(file, b"user.a", data.concat().into(), SetXattr::Any).await),
            22 => {
                let view = fs.within(self.volume.transact.begin(Begin::STRICT).await.unwrap());
                drop(view.rename((dir, &name), (other, &to), Rename::Replace).await);
                let passing = self.write_within(&view, file, data, how).await;
                drop(view.create(other, b"made within", &node(Node::File, 0o644)).await);
                if self.rng.random_bool(0.3) {
                    view.abort().await;
                    return false;
                }
                let committed = view.commit(Durability::Synced).await.is_ok();
                self.passing = if committed { passing } else { Vec::new() };
                return committed;
            }
            _ => {
                fs.sync_all().await.unwrap();
                return true;
            }
        }
        false
    }

    /// Writes to a file within a transaction, up to three times; what it held after each.
    async fn write_within(
        &mut self,
        view: &LocalFs,
        file: Ino,
        data: Vec<Bytes>,
        how: WriteHow,
    ) -> Vec<Passing> {
        let mut passing = Vec::new();
        let len: usize = data.iter().map(Bytes::len).sum();
        for _ in 0..self.rng.random_range(1..4) {
            let at = self.rng.random_range(0..60_000);
            drop(view.write(file, WriteAt::Offset(at), data.clone(), how).await);
            if view.attributes(file).await.is_ok() {
                let range = at as usize..at as usize + len;
                passing.push(Passing { ino: file, range, bytes: content(view, file).await });
            }
        }
        passing
    }
}
