//! Calls on a filesystem without the kernel and without a disk: what a create, a small write and an unlink cost
//! in this process, on a device of memory.

use std::sync::Arc;

use bytes::Bytes;
use thalweg_env::Env;
use thalweg_fs::{Filesystem, Ino, NewNode, Node, WriteAt, WriteHow};
use thalweg_store::block::BLOCK_SIZE;
use thalweg_store::device::{DeviceRef, MemoryDevice};
use thalweg_store::inplace::Mode;

use super::made::make;
use super::{CREATES, SIZE, runtime};
use crate::rig::{failed, median, rounded};
use crate::{BenchError, Report};

/// This load's name.
pub(super) const NAME: &str = "in_process";
const ROUNDS: u32 = 5;

/// Reports the median over the rounds of each call's time in microseconds, one call after the other.
pub(super) fn measure(report: &mut Report, scale: f64) -> Result<(), BenchError> {
    let files = ((CREATES * scale) as u32).max(1);
    let runtime = runtime()?;
    let rounds: Vec<[f64; 3]> = runtime.block_on(async {
        let device: DeviceRef = Arc::new(MemoryDevice::new(SIZE));
        let (fs, store) = make(device, Mode::default()).await?;
        let mut rounds = Vec::new();
        for number in 0..ROUNDS {
            rounds.push(round(&*fs, number, files).await?);
        }
        fs.close().await.map_err(failed)?;
        drop(fs);
        store.close().await.map_err(failed)?;
        Ok::<_, BenchError>(rounds)
    })?;
    for (at, name) in ["create", "write_4k", "unlink"].into_iter().enumerate() {
        let value = median(rounds.iter().map(|round| round[at]).collect());
        report.figure(&format!("{name}_us_in_process"), rounded(value));
    }
    Ok(())
}

/// Creates files in a directory of their own, overwrites a block of each, and unlinks them; the microseconds of
/// each such call.
async fn round(fs: &dyn Filesystem, number: u32, files: u32) -> Result<[f64; 3], BenchError> {
    let env = Env::real();
    let node = |node, mode| NewNode { node, mode, umask: 0o022, uid: 0, gid: 0 };
    let folder = format!("folder{number}");
    let folder = fs.create(Ino::ROOT, folder.as_bytes(), &node(Node::Directory, 0o755)).await;
    let folder = folder.map_err(failed)?.ino;
    let names: Vec<String> = (0..files).map(|nth| format!("file{nth}")).collect();
    let mut created = Vec::with_capacity(names.len());

    let begun = env.now();
    for name in &names {
        let file = fs.create(folder, name.as_bytes(), &node(Node::File, 0o644)).await;
        created.push(file.map_err(failed)?.ino);
    }
    let create = env.now().since(begun);

    let mut write = None;
    // The first write of a block allocates it, and is not counted.
    for fill in [1, 2] {
        let block = Bytes::from(vec![fill; BLOCK_SIZE]);
        let begun = env.now();
        for file in &created {
            let data = vec![block.clone()];
            let written = fs.write(*file, WriteAt::Offset(0), data, WriteHow::default()).await;
            written.map_err(failed)?;
        }
        write = Some(env.now().since(begun));
    }

    let begun = env.now();
    for name in &names {
        fs.unlink(folder, name.as_bytes()).await.map_err(failed)?;
    }
    let unlink = env.now().since(begun);
    let each = |time: std::time::Duration| time.as_secs_f64() * 1e6 / f64::from(files);
    Ok([create, write.unwrap_or_default(), unlink].map(each))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_call_takes_time() {
        let mut report = Report::new("fs", 1);
        measure(&mut report, 0.001).unwrap();
        for name in ["create", "write_4k", "unlink"] {
            let figure = report.number(&format!("{name}_us_in_process")).unwrap();
            assert!(figure > 0.0 && figure < 1e5, "{name}: {figure} us");
        }
    }
}
