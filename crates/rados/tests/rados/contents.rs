//! Filesystems whose names lie on an image, and whose contents are objects beside it.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rand::{RngExt, SeedableRng};
use thalweg_env::{Env, Rng};
use thalweg_fs::check::{Damage, How, check_with};
use thalweg_fs::local::{self, Format, LocalFs};
use thalweg_fs::{
    AttributeChange, Contents, ContentsKind, Filesystem, FsError, Ino, NewNode, Node, WriteAt,
    WriteHow,
};
use thalweg_rados::RadosKind;
use thalweg_sim::rados::{RadosSpec, SimRados};
use thalweg_sim::{campaign, run};
use thalweg_store::device::{Access, DeviceKind, DeviceKinds};
use thalweg_store::inplace::{InPlace, NewInPlace};
use thalweg_store::open::{AnyVolume, Options, VolumePath, in_place_parts};
use thalweg_store::txn::Transact;

use crate::kind::{OnePool, opener};

const MIB: u64 = 1 << 20;

/// An image with a filesystem, open in a process that is known to have ended when another one opens it.
struct Server {
    kind: Arc<RadosKind>,
    volume: AnyVolume,
    contents: Arc<dyn Contents>,
    fs: LocalFs,
}

fn kind(env: &Env, cluster: &SimRados) -> Arc<RadosKind> {
    let pools = Arc::new(OnePool(cluster.client().store()));
    Arc::new(RadosKind::new(env, pools, opener(false)))
}

/// Makes an image with a filesystem that has its contents in objects.
async fn make(env: &Env, cluster: &SimRados, image: &str) {
    let kind = kind(env, cluster);
    let kinds = DeviceKinds::new(vec![kind.clone()]);
    let device = format!("rados:p/{image}");
    let place = Path::new(&device);
    kinds.create(place, 16 * MIB).await.unwrap();
    let parts = in_place_parts(env, &kinds, place, None, Access::Exclusive).await.unwrap();
    let new = NewInPlace { name: "v".to_owned(), journal_size: None, size: None };
    InPlace::create(env, &parts, &new).await.unwrap();
    drop(parts);
    let options = Options { kinds: kinds.clone(), ..Options::default() };
    let volume = AnyVolume::open(env, &VolumePath::Device(place.to_owned()), &options).await;
    let volume = volume.unwrap();
    let contents = kind.beside(place, "fs").await.unwrap().unwrap();
    let transact: Arc<dyn Transact> = Arc::new(volume.transactions().clone());
    local::make_external(env, &transact, &Format::default(), &*contents).await.unwrap();
    volume.close().await.unwrap();
    kinds.close().await.unwrap();
}

async fn open(env: &Env, cluster: &SimRados, image: &str) -> Server {
    let kind = kind(env, cluster);
    let kinds = DeviceKinds::new(vec![kind.clone()]);
    let device = format!("rados:p/{image}");
    let place = VolumePath::Device(device.into());
    let options = Options { kinds, ..Options::default() };
    let volume = AnyVolume::open(env, &place, &options).await.unwrap();
    let contents = kind.beside(place.path(), "fs").await.unwrap().unwrap();
    let transact: Arc<dyn Transact> = Arc::new(volume.transactions().clone());
    let options = local::Options::default();
    let fs =
        LocalFs::open_with(env, transact, "fs", options, Some(contents.clone())).await.unwrap();
    Server { kind, volume, contents, fs }
}

impl Server {
    async fn create(&self, name: &str) -> Ino {
        let new = NewNode { node: Node::File, mode: 0o644, umask: 0, uid: 0, gid: 0 };
        self.fs.create(Ino::ROOT, name.as_bytes(), &new).await.unwrap().ino
    }

    async fn write(&self, ino: Ino, offset: u64, data: &[u8]) -> Result<u64, FsError> {
        let data = vec![Bytes::copy_from_slice(data)];
        self.fs.write(ino, WriteAt::Offset(offset), data, WriteHow::default()).await
    }

    async fn content(&self, ino: Ino) -> Vec<u8> {
        let size = self.fs.attributes(ino).await.unwrap().size;
        self.fs.read(ino, 0, size as usize).await.unwrap().concat()
    }

    async fn close(self) {
        self.fs.close().await.unwrap();
        drop(self.fs);
        self.volume.close().await.unwrap();
        self.kind.close().await.unwrap();
        assert!(self.contents.list().await.is_err(), "they end with the device");
    }
}

fn stripes(cluster: &SimRados) -> usize {
    cluster.objects().iter().filter(|name| name.contains('@')).count()
}

#[test]
fn contents_of_two_filesystems_do_not_meet() {
    run(1, |env| async move {
        let cluster = SimRados::new(&env, RadosSpec::default());
        let images = ["a", "a.files"];
        let mut inodes = Vec::new();
        for image in images {
            make(&env, &cluster, image).await;
            let server = open(&env, &cluster, image).await;
            let file = server.create("file").await;
            server.write(file, 5 * MIB, image.as_bytes()).await.unwrap();
            server.write(file, 0, image.as_bytes()).await.unwrap();
            inodes.push(file);
            server.close().await;
        }
        assert_eq!(inodes[0], inodes[1]);
        assert_eq!(stripes(&cluster), 4);
        kind(&env, &cluster).remove("p/a").await.unwrap();
        assert_eq!(stripes(&cluster), 2);
        let server = open(&env, &cluster, images[1]).await;
        let content = server.content(inodes[1]).await;
        assert_eq!((&content[..7], &content[5 << 20..]), (&b"a.files"[..], &b"a.files"[..]));
        server.fs.unlink(Ino::ROOT, b"file").await.unwrap();
        server.close().await;
        assert_eq!(stripes(&cluster), 0);
    });
}

#[test]
fn a_server_that_was_replaced_changes_nothing() {
    for seed in campaign::seeds(8) {
        run(seed, |env| async move {
            let cluster = SimRados::new(&env, RadosSpec::default());
            make(&env, &cluster, "v").await;
            let old = open(&env, &cluster, "v").await;
            let mut rng = Rng::seed_from_u64(seed);
            let file = old.create("file").await;
            let synced: Vec<u8> = (0..3 * MIB / 2).map(|_| rng.random()).collect();
            old.write(file, 0, &synced).await.unwrap();
            let gone = old.create("gone").await;
            old.write(gone, 0, b"gone").await.unwrap();
            old.fs.sync_all().await.unwrap();
            // None of this is durable.
            let undone = old.create("undone").await;
            old.write(undone, 0, b"undone").await.unwrap();
            let cut = AttributeChange { size: Some(10), ..AttributeChange::default() };
            old.fs.set_attributes(file, &cut).await.unwrap();
            old.fs.unlink(Ino::ROOT, b"gone").await.unwrap();
            env.sleep(Duration::from_millis(rng.random_range(0..1500))).await;
            let mut late = Box::pin(old.write(file, 5, &[7; 100]));
            let _ = futures::poll!(&mut late);
            let new = open(&env, &cluster, "v").await;
            // It may have been made before the other server opened the image.
            let _ = late.await;
            let refused = old.write(file, 0, b"from the past").await;
            assert!(refused.is_err(), "{refused:?}");
            let _ = old.fs.unlink(Ino::ROOT, b"file").await;
            env.sleep(Duration::from_secs(5)).await;
            let content = new.content(file).await;
            if content.len() == synced.len() {
                assert!(content[105..] == synced[105..], "the cut was not durable");
            }
            let names = new.fs.lookup(Ino::ROOT, b"gone").await.unwrap();
            if let thalweg_fs::Lookup::Found(found) = names {
                assert_eq!(new.content(found.ino).await, b"gone");
            }
            new.fs.close().await.unwrap();
            drop(new.fs);
            let transact: Arc<dyn Transact> = Arc::new(new.volume.transactions().clone());
            for repair in [true, false] {
                let how = How { repair, ..How::default() };
                let contents = Some(new.contents.clone());
                let report = check_with(&env, transact.clone(), "fs", how, contents).await.unwrap();
                let is_left = |damage: &Damage| {
                    matches!(
                        damage,
                        Damage::OrphanedContents { .. } | Damage::ContentsBehind { .. }
                    )
                };
                let mut damages = report.findings.iter().map(|finding| &finding.damage);
                assert!(repair && damages.all(is_left) || report.is_clean(), "{report:?}");
            }
        });
    }
}
