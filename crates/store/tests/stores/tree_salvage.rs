//! Damaged B-trees: a salvage rebuilds them, keeps everything that can be read, and names the rest.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use thalweg_env::Env;
use thalweg_sim::passing::{Around, Change, Passing};
use thalweg_sim::runtime::run;
use thalweg_sim::versions::VersionedMemory;
use thalweg_store::block::{BLOCK_SIZE, BlocksExt, Lba, StoreError, Write};
use thalweg_store::tree::format::{BODY, PAGE_MAGIC, PageHeader, PageKind};
use thalweg_store::tree::{KeyRange, Kind, Salvage, Store, TreeError, catalogue};
use thalweg_store::txn::{Begin, Durability, Transact};
use zerocopy::FromBytes;

use crate::support::kv::{Map, contents, create, partition, transact};

const BLOCKS: u64 = 600;

/// Contents of blocks.
type Blocks = BTreeMap<u64, Bytes>;

/// Wraps a store: some blocks cannot be read until they are written, and changes fail after a given number of
/// them.
#[derive(Debug)]
struct Failing {
    unreadable: Mutex<Vec<u64>>,
    changes: Mutex<usize>,
}

type Broken = Passing<Failing>;

#[async_trait]
impl Around for Failing {
    async fn before_read(&self, lba: Lba, count: u64) -> Result<(), StoreError> {
        let hit = |bad: &&u64| (lba.0..lba.0 + count).contains(bad);
        match self.unreadable.lock().iter().find(hit) {
            Some(bad) => {
                Err(StoreError::Corrupt { lba: Lba(*bad), detail: "for a test".to_owned() })
            }
            None => Ok(()),
        }
    }

    async fn before_change(&self, change: Change<'_>) -> Result<(), StoreError> {
        let mut left = self.changes.lock();
        *left = left.checked_sub(1).ok_or_else(|| StoreError::Poisoned("a power cut".into()))?;
        let mends = |lba: u64| match change {
            Change::Apply(writes) => writes.iter().any(|write| write.lba.0 == lba),
            Change::Discard(first, count) => (first.0..first.0 + count).contains(&lba),
        };
        self.unreadable.lock().retain(|lba| !mends(*lba));
        Ok(())
    }
}

/// How a block is damaged.
#[derive(Clone, Debug)]
enum Harm {
    Unreadable,
    Content(Bytes),
}

const NOISE: Harm = Harm::Content(Bytes::from_static(&[0x5a; BLOCK_SIZE]));

/// A volume with a tree of four levels, before any damage.
struct Image {
    blocks: Blocks,
    map: Map,
    first: u64,
}

/// A page of the tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Role {
    Header,
    Bitmap,
    Root,
    Inner,
    Leaf,
}

/// A long key, so that separators are long too.
fn key(number: u64) -> Vec<u8> {
    format!("{:.>600}", format!("{number:06}")).into_bytes()
}

impl Image {
    async fn new(env: &Env) -> Image {
        let volume = transact(env, Arc::new(VersionedMemory::new(BLOCKS + 16)));
        let store = create(env, &volume, "tree", Kind::Btree, BLOCKS).await;
        let mut map = Map::new();
        for number in (0..150).map(|nth| nth * 37 % 150) {
            let len = if number % 25 == 7 { 9000 } else { 100 };
            let value = vec![number as u8; len];
            store.put(&key(number), value.clone()).await.unwrap();
            map.insert(key(number), value);
        }
        let depth = store.check().await.unwrap().depth;
        assert_eq!(depth, 3, "there are two levels between root and leaves");
        let first = catalogue::open(&*volume, "tree").await.unwrap().first;
        Image { blocks: read_all(&volume).await, map, first }
    }

    /// The pages of the tree.
    fn pages(&self) -> Vec<(u64, Role, PageHeader)> {
        let page = |(lba, content): (&u64, &Bytes)| {
            let header = PageHeader::read_from_prefix(content).unwrap().0;
            let kind = header.kind;
            let role = match header.level {
                _ if header.magic != PAGE_MAGIC => return None,
                _ if kind == PageKind::Header.encode() => Role::Header,
                _ if kind == PageKind::Bitmap.encode() => Role::Bitmap,
                3 => Role::Root,
                1 | 2 => Role::Inner,
                _ => Role::Leaf,
            };
            Some((*lba, role, header))
        };
        self.blocks.iter().filter_map(page).collect()
    }

    fn all(&self, role: Role) -> Vec<u64> {
        self.pages().iter().filter(|page| page.1 == role).map(|page| page.0).collect()
    }

    /// The keys of a leaf.
    fn keys(&self, lba: u64) -> Vec<Vec<u8>> {
        let content = &self.blocks[&lba];
        let keys = self.map.keys();
        let count = PageHeader::read_from_prefix(content).unwrap().0.count.get();
        let slots = content[BODY..].chunks(2).take(count.into());
        let records: Vec<&[u8]> = slots
            .map(|slot| &content[usize::from(u16::from_le_bytes([slot[0], slot[1]])) * 16..])
            .collect();
        let has = |key: &&Vec<u8>| {
            let is = |record: &&[u8]| {
                let room = usize::from(u16::from_le_bytes([record[6], record[7]]));
                record[8 + room..].starts_with(key)
            };
            records.iter().any(is)
        };
        keys.filter(has).cloned().collect()
    }

    /// The volume with some damaged blocks; it takes so many changes.
    async fn harmed(&self, harm: &[(u64, Harm)], changes: usize) -> Arc<Broken> {
        let memory = VersionedMemory::trusting(BLOCKS + 16);
        let mut blocks = self.blocks.clone();
        let mut unreadable = Vec::new();
        for (lba, harm) in harm {
            match harm {
                Harm::Unreadable => unreadable.push(*lba),
                Harm::Content(content) => drop(blocks.insert(*lba, content.clone())),
            }
        }
        let write = |(lba, content)| Write::block(Lba(lba), content);
        memory.apply(blocks.into_iter().map(write).collect()).await.unwrap();
        let around = Failing { unreadable: Mutex::new(unreadable), changes: Mutex::new(changes) };
        Arc::new(Passing::new(Arc::new(memory), around))
    }

    /// Salvages the damaged volume. Returns the report, and the contents of the tree.
    async fn salvage(&self, env: &Env, harm: &[(u64, Harm)]) -> (Salvage, Map) {
        let broken = self.harmed(harm, usize::MAX).await;
        let volume = transact(env, broken.clone());
        let damage = match Store::open(env, volume.clone(), "tree").await {
            Ok(store) => match store.check().await {
                Ok(_) => contents_or_damage(&store).await.err(),
                Err(error) => Some(error),
            },
            Err(error) => Some(error),
        };
        assert!(damage.is_none_or(|error| error.is_damage()));
        let said = Store::salvage(env, volume.clone(), "tree").await.unwrap();
        let map = whole(env, &volume).await;
        let again = Store::salvage(env, volume.clone(), "tree").await.unwrap();
        assert_eq!(again, Salvage::default(), "nothing is left to be done");
        self.assert_named(&said, &map);
        (said, map)
    }

    /// Present keys have their former values, and missing ones are named in the report.
    fn assert_named(&self, said: &Salvage, map: &Map) {
        for (key, value) in &self.map {
            match map.get(key) {
                Some(found) => assert!(found == value, "another value"),
                None => assert!(is_named(said, key), "a key is lost without a word: {said:?}"),
            }
        }
        assert!(map.keys().all(|key| self.map.contains_key(key)));
    }
}

fn is_named(said: &Salvage, key: &[u8]) -> bool {
    let inside =
        |range: &KeyRange| range.low <= key && range.high.as_ref().is_none_or(|high| key < high);
    said.missing.iter().any(inside) || said.values.iter().any(|lost| lost == key)
}

async fn contents_or_damage(store: &Store) -> Result<(), TreeError> {
    store.iter().await?.collect().await.map(drop)
}

/// The contents of a tree, which has to be sound, and to take changes.
async fn whole(env: &Env, volume: &Arc<dyn Transact>) -> Map {
    let store = Store::open(env, volume.clone(), "tree").await.unwrap();
    store.check().await.unwrap();
    let map = contents(&store).await;
    for number in 0..20 {
        store.put(&key(1000 + number), vec![1; 3000]).await.unwrap();
    }
    store.check().await.unwrap();
    for number in 0..20 {
        assert!(store.delete(&key(1000 + number)).await.unwrap());
    }
    store.check().await.unwrap();
    assert_eq!(contents(&store).await, map);
    map
}

async fn read_all(volume: &Arc<dyn Transact>) -> Blocks {
    let txn = volume.begin(Begin::SNAPSHOT).await.unwrap();
    let blocks = txn.read_run(Lba(0), txn.blocks()).await.unwrap();
    let used = |(_, block): &(u64, Bytes)| block.iter().any(|byte| *byte != 0);
    (0..).zip(blocks).filter(used).collect()
}

#[test]
fn each_page_in_turn() {
    run(1, |env| async move {
        let image = Image::new(&env).await;
        let pages = image.pages();
        for (lba, role, header) in &pages {
            let mut other = *header;
            other.block = (header.block.get() + 1).into();
            let mut moved = image.blocks[lba].to_vec();
            moved[..BODY].copy_from_slice(zerocopy::IntoBytes::as_bytes(&other));
            for harm in [Harm::Unreadable, NOISE, Harm::Content(moved.into())] {
                let (said, map) = image.salvage(&env, &[(*lba, harm)]).await;
                let left = image.map.len() - map.len();
                match role {
                    Role::Leaf => {
                        let blocks = 1 + large_blocks(&image, *lba);
                        assert_eq!((said.blocks, said.found), (blocks, 0));
                        assert_eq!(left, image.keys(*lba).len());
                        assert_eq!(said.missing.len(), 1);
                        let lost = |key: &Vec<u8>| is_named(&said, key);
                        assert_eq!(image.map.keys().filter(|key| lost(key)).count(), left);
                    }
                    Role::Root | Role::Inner => {
                        assert!(said.is_whole() && left == 0, "{said:?}");
                        assert!(said.blocks == 1 && said.found > 1, "{said:?}");
                    }
                    Role::Header | Role::Bitmap => {
                        assert_eq!((said, left), (Salvage::default(), 0));
                    }
                }
            }
        }
        assert!(image.all(Role::Inner).len() > 1 && image.all(Role::Leaf).len() > 20);
    });
}

#[test]
fn several_pages_at_once() {
    run(2, |env| async move {
        let image = Image::new(&env).await;
        let (root, leaves) = (image.all(Role::Root)[0], image.all(Role::Leaf));
        let (inner, bitmap) = (image.all(Role::Inner), image.all(Role::Bitmap)[0]);
        let harm = [(leaves[7], NOISE), (bitmap, NOISE), (image.first, NOISE)];
        let (_, map) = image.salvage(&env, &harm).await;
        assert_eq!(image.map.len() - map.len(), image.keys(leaves[7]).len());
        let (said, map) = image.salvage(&env, &[(inner[0], NOISE), (inner[1], NOISE)]).await;
        assert!(said.is_whole() && map == image.map, "{said:?}");
        for leaf in &leaves {
            let harm = [(root, Harm::Unreadable), (inner[0], NOISE), (*leaf, NOISE)];
            let (said, map) = image.salvage(&env, &harm).await;
            assert_eq!(image.map.len() - map.len(), image.keys(*leaf).len());
            assert_eq!(said.blocks, 3 + large_blocks(&image, *leaf), "{said:?}");
        }
        // All leaves except one.
        let harm: Vec<(u64, Harm)> = leaves[1..].iter().map(|lba| (*lba, NOISE)).collect();
        let (_, map) = image.salvage(&env, &harm).await;
        assert_eq!(map.into_keys().collect::<Vec<_>>(), image.keys(leaves[0]));
    });
}

/// Blocks of the large values of a leaf.
fn large_blocks(image: &Image, leaf: u64) -> u64 {
    let large = |key: &Vec<u8>| image.map[key].len() > 5000;
    image.keys(leaf).iter().filter(|key| large(key)).count() as u64 * 3
}

#[test]
fn a_value_that_cannot_be_read_goes_alone() {
    run(3, |env| async move {
        let image = Image::new(&env).await;
        let pages: Vec<u64> = image.pages().iter().map(|page| page.0).collect();
        let values = image.blocks.keys().filter(|lba| **lba > image.first && !pages.contains(lba));
        let mut count = 0;
        for lba in values {
            let (said, map) = image.salvage(&env, &[(*lba, Harm::Unreadable)]).await;
            assert_eq!((said.values.len(), map.len()), (1, image.map.len() - 1));
            assert!(said.missing.is_empty());
            count += 1;
        }
        assert_eq!(count, 18, "six values of three blocks");
    });
}

#[test]
fn nothing_is_changed_where_nothing_is_certain() {
    run(4, |env| async move {
        let image = Image::new(&env).await;
        let all_leaves = image.all(Role::Leaf).into_iter().map(|lba| (lba, NOISE)).collect();
        let bitmap = image.all(Role::Bitmap)[0];
        let with_bitmap = |lba: u64| vec![(bitmap, NOISE), (lba, NOISE)];
        let (root, inner) = (image.all(Role::Root)[0], image.all(Role::Inner)[0]);
        for harm in [all_leaves, with_bitmap(root), with_bitmap(inner)] {
            let broken = image.harmed(&harm, 0).await;
            let said = Store::salvage(&env, transact(&env, broken), "tree").await;
            assert!(matches!(said, Err(TreeError::Damaged { .. })), "{said:?}");
        }
    });
}

/// A leaf as it would be in another block.
fn moved(image: &Image, from: u64, to: u64) -> Bytes {
    let mut content = image.blocks[&from].to_vec();
    content[12..16].copy_from_slice(&((to - image.first) as u32).to_le_bytes());
    content.into()
}

/// The bitmap page of a block of the tree with the block's bit flipped.
fn flipped(image: &Image, lba: u64) -> (u64, Harm) {
    let bitmap = image.all(Role::Bitmap)[0];
    let bit = (lba - image.all(Role::Root)[0] - 1) as usize;
    let mut content = image.blocks[&bitmap].to_vec();
    content[BODY + bit / 8] ^= 1 << (bit % 8);
    (bitmap, Harm::Content(content.into()))
}

#[test]
fn leaves_that_are_stale_stay_away() {
    run(5, |env| async move {
        let image = Image::new(&env).await;
        let (root, leaves) = (image.all(Role::Root)[0], image.all(Role::Leaf));
        let free = image.first + BLOCKS - 1;
        assert!(!image.blocks.contains_key(&free));
        for leaf in leaves.iter().step_by(7) {
            let stale = (free, Harm::Content(moved(&image, *leaf, free)));
            // Free in the bitmap: it does not count as a leaf, even where its keys are missing.
            let harm = [(root, NOISE), stale.clone()];
            let (said, map) = image.salvage(&env, &harm).await;
            assert!(said.is_whole() && map == image.map, "{said:?}");
            let (_, map) = image.salvage(&env, &[(*leaf, NOISE), stale.clone()]).await;
            assert_eq!(image.map.len() - map.len(), image.keys(*leaf).len());
            // In use, but a sound leaf has these keys.
            let (said, map) = image.salvage(&env, &[flipped(&image, free), stale.clone()]).await;
            assert_eq!((said.refused, map.len()), (1, image.map.len()));
            // The bitmap is damaged, but no keys are missing.
            let harm = [(image.all(Role::Bitmap)[0], NOISE), stale.clone()];
            let (said, map) = image.salvage(&env, &harm).await;
            assert!(said.is_whole() && map == image.map, "{said:?}");
            // Here the two cases cannot be told apart.
            let harm = [flipped(&image, free), stale, (root, NOISE)];
            let (said, map) = image.salvage(&env, &harm).await;
            assert_eq!(said.refused, 2);
            assert_eq!(image.map.len() - map.len(), image.keys(*leaf).len());
        }
    });
}

#[test]
fn a_value_is_no_leaf_whatever_it_looks_like() {
    run(6, |env| async move {
        let image = Image::new(&env).await;
        let (root, leaves) = (image.all(Role::Root)[0], image.all(Role::Leaf));
        let pages: Vec<u64> = image.pages().iter().map(|page| page.0).collect();
        let value = image.blocks.keys().rfind(|lba| **lba > image.first && !pages.contains(lba));
        let value = *value.unwrap();
        let forged = Harm::Content(moved(&image, leaves[3], value));
        for harm in [vec![(value, forged.clone())], vec![(value, forged.clone()), (root, NOISE)]] {
            let broken = image.harmed(&harm, usize::MAX).await;
            let volume = transact(&env, broken);
            let said = Store::salvage(&env, volume.clone(), "tree").await.unwrap();
            assert!(said.refused == 0 && said.is_whole(), "{said:?}");
            assert_eq!(whole(&env, &volume).await.len(), image.map.len());
        }
    });
}

#[test]
fn separators_that_are_wrong() {
    run(7, |env| async move {
        let image = Image::new(&env).await;
        for role in [Role::Root, Role::Inner] {
            for lba in image.all(role) {
                // One byte of each: some make no difference, others mislead.
                for at in (BODY..BLOCK_SIZE).step_by(97) {
                    let mut content = image.blocks[&lba].to_vec();
                    content[at] ^= 0x11;
                    let harm = Harm::Content(content.into());
                    let (said, map) = image.salvage(&env, &[(lba, harm)]).await;
                    assert!(said.is_whole() && map == image.map, "byte {at}: {said:?}");
                }
            }
        }
    });
}

#[test]
fn a_salvage_that_is_cut_short_is_gone_on_with() {
    run(8, |env| async move {
        let image = Image::new(&env).await;
        let (root, leaves) = (image.all(Role::Root)[0], image.all(Role::Leaf));
        let (inner, bitmap) = (image.all(Role::Inner)[0], image.all(Role::Bitmap)[0]);
        let mut cuts = 0;
        for harm in [
            vec![(leaves[5], NOISE), (leaves[9], Harm::Unreadable)],
            vec![(inner, Harm::Unreadable), (leaves[0], NOISE)],
            vec![(root, NOISE)],
            vec![(image.first, NOISE), (bitmap, NOISE), (leaves[2], NOISE)],
            vec![(image.first, NOISE), (root, NOISE), (leaves[2], NOISE)],
        ] {
            let (_, expected) = image.salvage(&env, &harm).await;
            for changes in 0.. {
                let broken = image.harmed(&harm, changes).await;
                let cut = Store::salvage(&env, transact(&env, broken.clone()), "tree").await;
                *broken.around.changes.lock() = usize::MAX;
                if cut.is_ok() {
                    break;
                }
                let volume = transact(&env, broken);
                Store::salvage(&env, volume.clone(), "tree").await.unwrap();
                assert!(whole(&env, &volume).await == expected, "after {changes} changes");
                cuts += 1;
            }
        }
        assert!(cuts > 15, "{cuts}");
    });
}

#[test]
fn a_tree_without_room_for_its_nodes_is_left_for_another_time() {
    run(9, |env| async move {
        let volume = transact(&env, Arc::new(VersionedMemory::trusting(100)));
        let new = partition("tree", Kind::Btree, 40);
        catalogue::create(&env, &*volume, &new).await.unwrap();
        let store = Store::open(&env, volume.clone(), "tree").await.unwrap();
        let mut map = Map::new();
        for number in 0.. {
            match store.put(&key(number), vec![7; 100]).await {
                Ok(()) => drop(map.insert(key(number), vec![7; 100])),
                Err(TreeError::Full(_)) => break,
                Err(error) => panic!("{error}"),
            }
        }
        let root = catalogue::open(&*volume, "tree").await.unwrap().first + 2;
        let txn = volume.begin(Begin::SNAPSHOT).await.unwrap();
        txn.write(Lba(root), vec![9; BLOCK_SIZE].into()).unwrap();
        txn.commit(Durability::Synced).await.unwrap();
        let mut found = 0;
        match Store::salvage(&env, volume.clone(), "tree").await {
            Ok(said) => {
                assert!(said.is_whole());
                found = said.found;
            }
            Err(TreeError::Full(_)) => {}
            Err(error) => panic!("{error}"),
        }
        println!("{found} leaves found room, of {} keys", map.len());
        match store.check().await {
            Ok(_) => assert_eq!(contents(&store).await, map),
            // Nothing is lost: the leaves are still there.
            Err(error) => assert!(error.to_string().contains("no page refers to it"), "{error}"),
        }
    });
}
