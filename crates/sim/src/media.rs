//! Named files on simulated devices: the file system operations that a volume needs, so that a crash
//! covers its manifest too.
//!
//! The names are in one sector of a device of their own, so that each change of them is atomic, and
//! durable once [`Media::sync_folder`] has flushed it. Texts are on a second device; a text that was
//! not synced may survive in part. Every other device is a file of its own. On the devices of a
//! [`Recorder`] all of these share one order of events.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use thalweg_store::device::{Access, DeviceError, DeviceRef, Geometry, Operation, Purpose};
use thalweg_store::pool::{Found, Media, Opened};

use crate::crash::CrashImage;
use crate::ramdisk::RamDisk;
use crate::recording::Recorder;

/// Bytes of the sector that holds all names.
const NAMES: usize = 4096;
/// Capacity of each text in bytes.
const TEXT: u64 = 16 * 1024;
/// Maximum number of texts in one run.
const TEXTS: u64 = 1024;

/// The target of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum File {
    /// A device, by its number.
    Device(usize),
    /// A text, by its slot.
    Text(u64),
}

/// Files on simulated devices.
#[derive(Debug)]
pub struct SimMedia {
    recorder: Option<Recorder>,
    sector: u32,
    /// The names, the texts, then one device for each file.
    devices: Mutex<Vec<DeviceRef>>,
    names: tokio::sync::Mutex<BTreeMap<PathBuf, File>>,
    /// The next free slot for a text.
    next: Mutex<u64>,
}

fn encode(names: &BTreeMap<PathBuf, File>) -> Vec<u8> {
    let line = |(path, file): (&PathBuf, &File)| match file {
        File::Device(number) => format!("d {number} {}\n", path.display()),
        File::Text(place) => format!("t {place} {}\n", path.display()),
    };
    let mut bytes: Vec<u8> = names.iter().map(line).collect::<String>().into_bytes();
    assert!(bytes.len() <= NAMES, "too many names for one sector");
    bytes.resize(NAMES, 0);
    bytes
}

fn decode(bytes: &[u8]) -> BTreeMap<PathBuf, File> {
    let text = String::from_utf8_lossy(bytes);
    let lines = text.trim_end_matches('\0').lines();
    let file = |line: &str| {
        let mut fields = line.splitn(3, ' ');
        let (kind, number, path) = (fields.next()?, fields.next()?.parse().ok()?, fields.next()?);
        let file = if kind == "d" { File::Device(number as usize) } else { File::Text(number) };
        Some((PathBuf::from(path), file))
    };
    lines.filter_map(file).collect()
}

impl SimMedia {
    /// An empty set of files, on new devices of `recorder` with sectors of `sector` bytes.
    pub fn recorded(recorder: &Recorder, sector: u32) -> SimMedia {
        let names = recorder.device("names", Geometry { size: NAMES as u64, sector: NAMES as u32 });
        let texts = recorder.device("texts", Geometry { size: TEXT * TEXTS, sector: 512 });
        SimMedia {
            recorder: Some(recorder.clone()),
            sector,
            devices: Mutex::new(vec![names, texts]),
            names: tokio::sync::Mutex::default(),
            next: Mutex::new(0),
        }
    }

    /// The files of a crash image, on devices that take no time. Each call returns a new copy.
    pub async fn of_image(image: &CrashImage, sector: u32) -> Result<SimMedia, DeviceError> {
        let copy = |disk: &Arc<RamDisk>| -> DeviceRef {
            use thalweg_store::device::Device;
            Arc::new(RamDisk::with_content(&disk.name(), disk.geometry(), disk.content()))
        };
        SimMedia::on(image.disks().iter().map(copy).collect(), None, sector).await
    }

    /// The files on `devices`, in the order of [`SimMedia::recorded`]. New devices are recorded too when
    /// there is a recorder.
    pub async fn on(
        devices: Vec<DeviceRef>,
        recorder: Option<Recorder>,
        sector: u32,
    ) -> Result<SimMedia, DeviceError> {
        let names = decode(&devices[0].read(0, NAMES, Purpose::Label).await?);
        let places = names.values().filter_map(|file| match file {
            File::Text(place) => Some(place + 1),
            File::Device(_) => None,
        });
        let next = Mutex::new(places.max().unwrap_or(0));
        let (devices, names) = (Mutex::new(devices), tokio::sync::Mutex::new(names));
        Ok(SimMedia { recorder, sector, devices, names, next })
    }

    /// The paths of all devices.
    pub async fn device_paths(&self) -> Vec<PathBuf> {
        let names = self.names.lock().await;
        let devices = names.iter().filter(|(_, file)| matches!(file, File::Device(_)));
        devices.map(|(path, _)| path.clone()).collect()
    }

    /// Replaces the device at `path` by what `how` returns for it: to inject faults.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`] when there is no device at `path`.
    pub async fn wrap(
        &self,
        path: &Path,
        how: impl FnOnce(DeviceRef) -> DeviceRef,
    ) -> io::Result<()> {
        let File::Device(number) = self.need(path).await? else {
            return Err(io::ErrorKind::NotFound.into());
        };
        let device = self.device(number);
        self.devices.lock()[number] = how(device);
        Ok(())
    }

    fn device(&self, number: usize) -> DeviceRef {
        self.devices.lock()[number].clone()
    }

    /// Changes the names atomically.
    async fn change<T>(
        &self,
        how: impl FnOnce(&mut BTreeMap<PathBuf, File>) -> T,
    ) -> io::Result<()> {
        let mut names = self.names.lock().await;
        let _ = how(&mut names);
        let bytes = Bytes::from(encode(&names));
        self.device(0).write(0, vec![bytes], Purpose::Label).await.map_err(io::Error::other)
    }

    async fn flush(&self, number: usize) -> io::Result<()> {
        self.device(number).flush(Purpose::Label).await.map_err(io::Error::other)
    }

    async fn get(&self, path: &Path) -> Option<File> {
        self.names.lock().await.get(path).copied()
    }

    async fn need(&self, path: &Path) -> io::Result<File> {
        self.get(path).await.ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

#[async_trait]
impl Media for SimMedia {
    async fn find(&self, path: &Path) -> io::Result<Option<Found>> {
        Ok(self.get(path).await.map(|file| Found {
            identity: match file {
                File::Device(number) => (0, number as u64),
                File::Text(place) => (1, place),
            },
            is_block_device: false,
        }))
    }

    async fn open(
        &self,
        path: &Path,
        _access: Access,
        _sector: Option<u32>,
    ) -> Result<Opened, DeviceError> {
        let file = self.need(path).await;
        let name = path.display().to_string();
        match file.map_err(|error| DeviceError::io(&name, Operation::Open, error))? {
            File::Device(number) => Ok(Opened::unlocked(self.device(number))),
            File::Text(_) => {
                let text = io::Error::new(io::ErrorKind::InvalidInput, "a text");
                Err(DeviceError::io(&name, Operation::Open, text))
            }
        }
    }

    async fn create(&self, path: &Path, size: u64, _: Option<u32>) -> Result<(), DeviceError> {
        let name = path.display().to_string();
        let failed = |error| DeviceError::io(&name, Operation::Create, error);
        if self.get(path).await.is_some() {
            return Err(failed(io::ErrorKind::AlreadyExists.into()));
        }
        let geometry = Geometry { size, sector: self.sector };
        let device: DeviceRef = match &self.recorder {
            Some(recorder) => recorder.device(&name, geometry),
            None => Arc::new(RamDisk::new(&name, geometry)),
        };
        let number = {
            let mut devices = self.devices.lock();
            devices.push(device);
            devices.len() - 1
        };
        let named = self.change(|names| names.insert(path.to_owned(), File::Device(number)));
        named.await.map_err(failed)?;
        self.flush(0).await.map_err(failed)
    }

    async fn make_folder(&self, _: &Path) -> io::Result<()> {
        Ok(())
    }

    async fn read_text(&self, path: &Path) -> io::Result<Option<String>> {
        let Some(File::Text(place)) = self.get(path).await else { return Ok(None) };
        let read = self.device(1).read(place * TEXT, TEXT as usize, Purpose::Label).await;
        let bytes = read.map_err(io::Error::other)?;
        let len = bytes.first_chunk::<4>().map_or(0, |len| u32::from_le_bytes(*len) as usize);
        Ok(Some(String::from_utf8_lossy(&bytes[4..][..len]).into_owned()))
    }

    async fn write_text(&self, path: &Path, text: &str) -> io::Result<()> {
        let place = {
            let mut next = self.next.lock();
            *next += 1;
            *next - 1
        };
        self.change(|names| names.insert(path.to_owned(), File::Text(place))).await?;
        let mut bytes = (text.len() as u32).to_le_bytes().to_vec();
        bytes.extend_from_slice(text.as_bytes());
        bytes.resize(bytes.len().next_multiple_of(512), 0);
        let texts = self.device(1);
        let written = texts.write(place * TEXT, vec![bytes.into()], Purpose::Label).await;
        written.map_err(io::Error::other)
    }

    async fn sync(&self, path: &Path) -> io::Result<()> {
        self.need(path).await?;
        self.flush(1).await
    }

    async fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let file = self.need(from).await?;
        self.change(|names| {
            names.remove(from);
            names.insert(to.to_owned(), file)
        })
        .await
    }

    async fn remove(&self, path: &Path) -> io::Result<()> {
        match self.get(path).await {
            Some(_) => self.change(|names| names.remove(path)).await,
            None => Ok(()),
        }
    }

    async fn sync_folder(&self, _: &Path) -> io::Result<()> {
        self.flush(0).await
    }
}
