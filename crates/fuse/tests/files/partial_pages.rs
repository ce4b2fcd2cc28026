//! Files that programs write in pieces, and read again: the kernel asks for each page that was written in parts, and the server is
//! not asked for any of them.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;

use thalweg_cluster::client::{self, Client, journal};
use thalweg_env::Env;
use thalweg_fs::Filesystem;
use thalweg_fuse::mounted::MountOptions;
use thalweg_store::device::{DeviceRef, MemoryDevice};

use crate::mapping::Mapping;
use crate::rig::{Loopback, Rig, local, server};

const LEN: usize = 300_000;
const PAGES: usize = LEN.div_ceil(4096);

#[derive(Clone, Copy, Debug)]
enum How {
    Read,
    Mapped,
    Reopened,
    Direct,
}

impl How {
    fn read(self, mut file: File, path: &Path) -> Vec<u8> {
        let mut options = OpenOptions::new();
        match self {
            How::Read => file.rewind().unwrap(),
            How::Mapped => return Mapping::of(&file, LEN, false).read(0, LEN),
            How::Reopened => {
                drop(file);
                file = options.read(true).open(path).unwrap();
            }
            How::Direct => {
                file = options.read(true).custom_flags(libc::O_DIRECT).open(path).unwrap();
            }
        }
        let mut read = Vec::new();
        file.read_to_end(&mut read).unwrap();
        read
    }
}

/// A mount of a client of a server, and the client.
fn mounted(journaled: bool) -> Option<(Rig, Arc<Client>)> {
    let mut connected = None;
    let make = |env: &Env| {
        let server = server(env, local(env));
        let connector = Box::new(Loopback::new(env, &server));
        let client = tokio::runtime::Handle::current().block_on(async {
            let mut options = client::Options::default();
            if journaled {
                let device: DeviceRef = Arc::new(MemoryDevice::new(2 * journal::MIN_SIZE));
                journal::create(env, &device).await.unwrap();
                options.journal = Some(device);
            }
            Client::connect(env, connector, options).await.unwrap()
        });
        let client = Arc::new(client);
        connected = Some(client.clone());
        client as Arc<dyn Filesystem>
    };
    let rig = Rig::with(make, &MountOptions::default())?;
    Some((rig, connected.unwrap()))
}

#[test]
fn pages_that_were_written_in_parts_are_read_without_the_server() {
    for journaled in [false, true] {
        let Some((rig, client)) = mounted(journaled) else { return };
        let data: Vec<u8> = (0..LEN).map(|at| (at / 7) as u8).collect();
        // With the first names, the directory becomes the client's own.
        std::fs::create_dir(rig.path("d")).unwrap();
        for name in ["d/one", "d/two"] {
            File::create(rig.path(name)).unwrap();
        }
        let asked = || {
            let stages = rig.mounted().stages();
            stages.iter().find(|it| it.stage == "fuse_read").map_or(0, |it| it.latency.count)
        };
        for piece in [100, 1000, 4000, 65_000] {
            for how in [How::Read, How::Mapped, How::Reopened, How::Direct] {
                let path = rig.path(&format!("d/{piece}-{how:?}"));
                let mut options = OpenOptions::new();
                let mut file = options.create(true).read(true).write(true).open(&path).unwrap();
                for part in data.chunks(piece) {
                    file.write_all(part).unwrap();
                }
                file.sync_all().unwrap();
                rig.block_on(client.drain()).unwrap();
                let (before, calls) = (asked(), client.traffic().sent_for("Read").messages);
                let what = format!("pieces of {piece} bytes, {how:?}, journal: {journaled}");
                assert!(how.read(file, &path) == data, "{what}");
                let calls = client.traffic().sent_for("Read").messages - calls;
                // The server notes the time of the first read. Past the kernel's pages, those that are whole come from it, and so does the end.
                let most = match how {
                    How::Direct if piece > 4096 => 100,
                    How::Direct => 2,
                    _ => 1,
                };
                assert!(calls <= most, "{what}: {calls} calls");
                // What the last requests were for may be counted after the reads.
                let least = if piece < 4096 { PAGES * 3 / 4 } else { 0 };
                let is_paged = !matches!(how, How::Direct);
                assert!(
                    !is_paged || asked() - before >= least as u64,
                    "{what}: other pages are valid"
                );
            }
        }
    }
}
