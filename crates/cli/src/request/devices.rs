//! How devices are named on the command line.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thalweg_store::device::kinds::{absolute, kind_of};
use thalweg_store::pool::{CacheSpec, DeviceSpec, LinkSpec};

use crate::size::Size;

/// A file, a block device or an image of a Ceph cluster: `PATH` or `PATH:SIZE`, where a path may be `rados:POOL/IMAGE`.
/// The size is for a file or an image to be made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DeviceArg {
    pub(crate) path: PathBuf,
    pub(crate) size: Option<u64>,
}

/// A link: a device, a mirror `mirror:A,B`, or a stripe `stripe:A,B`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum LinkArg {
    Device(DeviceArg),
    Mirror(Vec<DeviceArg>),
    Stripe(Vec<DeviceArg>),
}

impl FromStr for DeviceArg {
    type Err = String;

    fn from_str(text: &str) -> Result<DeviceArg, String> {
        let (path, size) = match text.rsplit_once(':').map(|(path, size)| (path, size.parse())) {
            Some((path, Ok(Size(size)))) => (path, Some(size)),
            _ => (text, None),
        };
        match path.is_empty() {
            _ if kind_of(Path::new(text)).is_some() && !has_parts(path) => Err(format!(
                "{text:?} names no image; write rados:POOL/IMAGE, or rados:POOL/IMAGE:SIZE"
            )),
            true => {
                Err("a device's path is missing; write PATH, or PATH:SIZE to make a file".into())
            }
            false => Ok(DeviceArg { path: PathBuf::from(path), size }),
        }
    }
}

/// Whether the name of an image has a pool and an image.
fn has_parts(name: &str) -> bool {
    kind_of(Path::new(name)).is_some_and(|(_, name)| name.contains('/'))
}

impl FromStr for LinkArg {
    type Err = String;

    fn from_str(text: &str) -> Result<LinkArg, String> {
        let members = |list: &str| -> Result<Vec<DeviceArg>, String> {
            let members = list.split(',').map(str::parse).collect::<Result<Vec<_>, _>>()?;
            match members.len() {
                0 | 1 => Err(format!("{text:?} needs two devices at least, with commas between")),
                _ => Ok(members),
            }
        };
        if let Some(list) = text.strip_prefix("mirror:") {
            return Ok(LinkArg::Mirror(members(list)?));
        }
        if let Some(list) = text.strip_prefix("stripe:") {
            return Ok(LinkArg::Stripe(members(list)?));
        }
        Ok(LinkArg::Device(text.parse()?))
    }
}

impl DeviceArg {
    /// The device for the store; a file to be made is filled with zeros.
    pub(crate) fn spec(&self) -> DeviceSpec {
        DeviceSpec { size: self.size, ..DeviceSpec::new(&self.path).preallocated() }
    }

    /// A part of an SSD: the size is how much of it.
    pub(crate) fn cache(&self) -> CacheSpec {
        CacheSpec { device: DeviceSpec::new(&self.path), bytes: self.size }
    }

    /// The same with an absolute path.
    pub(crate) fn absolute(self) -> std::io::Result<DeviceArg> {
        Ok(DeviceArg { path: absolute(&self.path)?, size: self.size })
    }
}

impl LinkArg {
    /// The link for the store.
    pub(crate) fn spec(&self) -> LinkSpec {
        let specs = |members: &[DeviceArg]| members.iter().map(DeviceArg::spec).collect();
        match self {
            LinkArg::Device(device) => LinkSpec::plain(device.spec()),
            LinkArg::Mirror(sides) => LinkSpec::mirror(specs(sides)),
            LinkArg::Stripe(columns) => LinkSpec::stripe(specs(columns)),
        }
    }

    /// The same with absolute paths.
    pub(crate) fn absolute(self) -> std::io::Result<LinkArg> {
        let all = |members: Vec<DeviceArg>| {
            members.into_iter().map(DeviceArg::absolute).collect::<std::io::Result<Vec<_>>>()
        };
        Ok(match self {
            LinkArg::Device(device) => LinkArg::Device(device.absolute()?),
            LinkArg::Mirror(members) => LinkArg::Mirror(all(members)?),
            LinkArg::Stripe(members) => LinkArg::Stripe(all(members)?),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(path: &str, size: Option<u64>) -> DeviceArg {
        DeviceArg { path: path.into(), size }
    }

    #[test]
    fn devices_and_links_are_read_as_written() {
        assert_eq!("/dev/sdb".parse(), Ok(LinkArg::Device(device("/dev/sdb", None))));
        assert_eq!("a:b:64M".parse(), Ok(device("a:b", Some(64 << 20))));
        assert_eq!("a:b".parse(), Ok(device("a:b", None)));
        let sides = vec![device("x", Some(1 << 30)), device("y", Some(2 << 30))];
        assert_eq!("mirror:x:1G,y:2G".parse(), Ok(LinkArg::Mirror(sides.clone())));
        assert_eq!("stripe:x:1G,y:2G".parse(), Ok(LinkArg::Stripe(sides)));
    }

    #[test]
    fn images_are_devices_and_keep_their_names() {
        let image = device("rados:p/i", None);
        assert_eq!("rados:p/i".parse(), Ok(image.clone()));
        assert_eq!("rados:p/n/i:64M".parse(), Ok(device("rados:p/n/i", Some(64 << 20))));
        assert_eq!(image.clone().absolute().unwrap(), image);
        let sides = vec![image, device("rados:q/j", Some(1 << 30))];
        assert_eq!("mirror:rados:p/i,rados:q/j:1G".parse(), Ok(LinkArg::Mirror(sides)));
    }

    #[test]
    fn half_a_link_is_refused() {
        for text in [
            "rados:1G",
            "rados:",
            "rados:p",
            "",
            ":1G",
            "mirror:a",
            "mirror:",
            "stripe:a,",
            "mirror:a,,b",
        ] {
            assert!(text.parse::<LinkArg>().is_err(), "{text}");
        }
    }
}
