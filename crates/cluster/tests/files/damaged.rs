//! A journal that is damaged in its middle: nothing of it is written back, what can be read is exported, and the rest is named.

use bytes::Bytes;
use thalweg_cluster::client::AttachError;
use thalweg_cluster::client::journal::{self, Exported, ExportedInode, JournalDamage};
use thalweg_env::Env;
use thalweg_fs::{Filesystem, Ino, Level, Node, WriteAt, WriteHow};
use thalweg_sim::crash::{CrashImage, Shape};
use thalweg_sim::recording::Recorder;
use thalweg_sim::run;
use thalweg_store::device::{DeviceRef, Purpose};

use crate::absence::text_at;
use crate::full::alone;
use crate::journal::{Journaled, SIZE};
use crate::scene::*;

const SECTOR: u64 = 512;

/// A journal with some hundred changes of eight files, which the server has not, in records of one or a few.
async fn written(scene: &Scene, machine: &mut Journaled) -> CrashImage {
    let client = machine.mount(scene, true).await.unwrap();
    let directory = alone(&client, "d").await;
    let mut files = Vec::new();
    for number in 0..8 {
        let file = make(&client, directory, &format!("f{number}"), Node::File).await;
        client.reference(file);
        put(&client, file, "first").await.unwrap();
        files.push(file);
    }
    client.wait_for(directory, Level::Server, LEASE).await.unwrap();
    for number in 0..150_u8 {
        let file = files[usize::from(number % 8)];
        let data = vec![Bytes::from(vec![number; 20 + usize::from(number) * 9])];
        let at = WriteAt::Offset(u64::from(number) * 31);
        client.write(file, at, data, WriteHow::default()).await.unwrap();
        if number % 3 == 0 {
            client.sync(file, false).await.unwrap();
        }
    }
    client.sync_all().await.unwrap();
    assert!(client.status().unsent >= 100);
    let image = machine.copy(None, Shape::Nothing);
    machine.process.kill();
    image
}

/// A copy of a journal with these bytes of a sector turned over.
async fn flipped(env: &Env, image: &CrashImage, at: u64) -> DeviceRef {
    let (_, devices) = Recorder::from_image(env, Default::default(), image);
    let device = devices[0].clone();
    let mut bytes = device.read(at, SECTOR as usize, Purpose::Journal).await.unwrap().to_vec();
    // Another byte of each sector.
    let byte = (at / SECTOR * 37 % SECTOR) as usize;
    bytes.iter_mut().skip(byte).take(9).for_each(|byte| *byte = !*byte);
    device.write(at, vec![bytes.into()], Purpose::Journal).await.unwrap();
    device
}

/// The sectors of a journal that are not zeros.
async fn used(device: &DeviceRef) -> Vec<u64> {
    let content = device.read(0, SIZE as usize, Purpose::Journal).await.unwrap();
    let sectors = content.chunks(SECTOR as usize).zip(0..);
    sectors.filter(|(it, _)| it.iter().any(|byte| *byte != 0)).map(|(_, at)| at * SECTOR).collect()
}

/// The steps of an inode as text.
fn steps(inodes: &[ExportedInode], ino: u64) -> Vec<String> {
    let of_inode = inodes.iter().filter(|it| it.ino == ino).flat_map(|it| &it.steps);
    of_inode.map(|step| format!("{step:?}")).collect()
}

/// What is exported of a damaged journal is the first changes of each file, and the last ones; between them are those that are named.
fn check(whole: &Exported, found: &Exported, damage: &JournalDamage, at: u64) {
    let mut missing = 0;
    for inode in &whole.inodes {
        let all = steps(&whole.inodes, inode.ino);
        let (first, last) = (steps(&found.inodes, inode.ino), steps(&found.behind, inode.ino));
        assert!(first.len() + last.len() <= all.len(), "sector {at}");
        assert_eq!(first, all[..first.len()], "sector {at}");
        assert_eq!(last, all[all.len() - last.len()..], "sector {at}");
        missing += all.len() - first.len() - last.len();
    }
    let named: u64 = damage.lost.iter().map(|(first, last)| last.unwrap() + 1 - first).sum();
    // Names are changes as well.
    assert!(missing as u64 <= named, "sector {at}: {missing} are missing, {damage:?}");
}

#[test]
fn of_a_damaged_journal_what_can_be_read_is_exported_and_the_rest_is_named() {
    run(1, |env| async move {
        let scene = Scene::durable(&env).await;
        let mut machine = Journaled::new(&scene, "a").await;
        let image = written(&scene, &mut machine).await;
        let (_, devices) = Recorder::from_image(&env, Default::default(), &image);
        let whole = journal::export(&env, &devices[0]).await.unwrap();
        let all = journal::inspect(&env, &devices[0]).await.unwrap();
        assert!(all.changes >= 100 && all.damage.is_none() && whole.behind.is_empty());
        let sectors = used(&devices[0]).await;
        assert!(sectors.len() > 200, "{}", sectors.len());
        let (mut damaged, mut in_part) = (0, 0);
        for at in sectors {
            let device = flipped(&env, &image, at).await;
            let report = match journal::inspect(&env, &device).await {
                Ok(report) => report,
                // Of its two first sectors each says what it is.
                Err(error) => panic!("sector {at}: {error}"),
            };
            let found = journal::export(&env, &device).await.unwrap();
            assert_eq!(report.damage, found.damage);
            assert_eq!((report.session, report.first), (all.session, all.first), "sector {at}");
            let Some(damage) = &report.damage else {
                // It is unused, or one of the last records, as after a power cut.
                let steps = |it: &Exported| it.inodes.iter().map(|it| it.steps.len()).sum();
                let (kept, before): (usize, usize) = (steps(&found), steps(&whole));
                assert!(kept + 8 >= before, "sector {at}: {kept} of {before} are left");
                continue;
            };
            damaged += 1;
            in_part += usize::from(report.changes > 0 && damage.behind > 0);
            check(&whole, &found, damage, at);
            let lost: u64 = damage.lost.iter().map(|(first, last)| last.unwrap() + 1 - first).sum();
            assert_eq!(report.changes + lost as usize + damage.behind, all.changes, "sector {at}");
            // The mount writes nothing back, and says what to do.
            let machine = Journaled::new(&scene, "a").await.with_device(device);
            let Err(AttachError::Journal(refused)) = machine.mount(&scene, true).await else {
                panic!("sector {at}: it is mounted");
            };
            let said = refused.to_string();
            for word in ["damaged in its middle", "inspect", "export", "erase --force"] {
                assert!(said.contains(word), "{said}");
            }
        }
        assert!(damaged > 200 && in_part > 150, "{damaged} and {in_part} sectors");
        let visitor = scene.client("other").await;
        env.sleep(2 * EXPIRE).await;
        for number in 0..8 {
            let path = format!("d/f{number}");
            assert_eq!(text_at(&visitor.client, &path).await.as_deref(), Some("first"));
        }
    });
}

/// The server has what is before the damage of the last records alone, which nothing tells from a power cut.
#[test]
fn damage_at_the_end_is_as_a_power_cut() {
    run(1, |env| async move {
        let scene = Scene::durable(&env).await;
        let mut machine = Journaled::new(&scene, "a").await;
        let image = written(&scene, &mut machine).await;
        let (_, devices) = Recorder::from_image(&env, Default::default(), &image);
        let last = *used(&devices[0]).await.last().unwrap();
        let device = flipped(&env, &image, last).await;
        assert_eq!(journal::inspect(&env, &device).await.unwrap().damage, None);
        let machine = Journaled::new(&scene, "a").await.with_device(device);
        let client = machine.mount(&scene, true).await.unwrap();
        let directory = client.find(Ino::ROOT, b"d").await.unwrap().ino;
        let file = client.find(directory, b"f4").await.unwrap().ino;
        client.reference(file);
        let content = client.read(file, 140 * 31, 20 + 140 * 9).await.unwrap().concat();
        assert!(content.contains(&140));
    });
}
