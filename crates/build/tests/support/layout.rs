//! OCI layouts made by hand with GNU tar. Successive layers use different compressions.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use blockyard_build::{Builder, Tree};
use blockyard_device::{BlockDevice, MemoryDevice};
use sha2::{Digest, Sha256};

/// The image of a tree with all times equal, because extraction changes those of directories.
pub(crate) fn image(tree: Tree) -> Vec<u8> {
    let plan = Builder { time: Some(1), ..Builder::default() }.plan(tree).unwrap();
    let device = MemoryDevice::new(plan.bytes());
    plan.write(&device).unwrap();
    let mut bytes = vec![0; usize::try_from(device.size()).unwrap()];
    device.read_at(0, &mut bytes).unwrap();
    bytes
}

pub(crate) fn sh(folder: &Path, script: &str) {
    let status = Command::new("sh").arg("-ec").arg(script).current_dir(folder).status().unwrap();
    assert!(status.success(), "{script}");
}

/// How a layer is stored: the suffix of its media type, and tar's options.
pub(crate) const STORED: [(&str, &str); 4] = [("", ""), ("+gzip", "-z"), ("+zstd", "--zstd"), ("+xz", "-J")];

/// An OCI layout that is being made.
pub(crate) struct Layout {
    pub(crate) root: PathBuf,
}

impl Layout {
    pub(crate) fn new(root: PathBuf) -> Self {
        fs::create_dir_all(root.join("blobs/sha256")).unwrap();
        fs::write(root.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).unwrap();
        Self { root }
    }

    /// Stores an object by its digest. Returns its descriptor without the closing brace.
    pub(crate) fn blob(&self, kind: &str, bytes: &[u8]) -> String {
        let digest: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        fs::write(self.root.join("blobs/sha256").join(&digest), bytes).unwrap();
        let size = bytes.len();
        format!(
            r#"{{"mediaType":"application/vnd.oci.image.{kind}","digest":"sha256:{digest}","size":{size}"#
        )
    }

    /// Makes an image from layers, which are folders. Returns its descriptor without the closing
    /// brace.
    pub(crate) fn image(&self, layers: &[PathBuf], architecture: &str) -> String {
        let mut descriptors = Vec::new();
        for (number, layer) in layers.iter().enumerate() {
            let (suffix, option) = STORED[number % STORED.len()];
            let file = self.root.with_extension("layer");
            let options = "--xattrs --xattrs-include='*' --acls --numeric-owner --sort=name";
            sh(layer, &format!("tar {options} {option} -cf '{}' .", file.display()));
            let blob = self.blob(&format!("layer.v1.tar{suffix}"), &fs::read(&file).unwrap());
            descriptors.push(blob + "}");
        }
        let config =
            format!(r#"{{"os":"linux","architecture":"{architecture}","rootfs":{{"type":"layers"}}}}"#);
        let config = self.blob("config.v1+json", config.as_bytes());
        let manifest =
            format!(r#"{{"schemaVersion":2,"config":{config}}},"layers":[{}]}}"#, descriptors.join(","));
        self.blob("manifest.v1+json", manifest.as_bytes())
    }

    pub(crate) fn index(&self, manifests: &[String]) {
        let text = format!(r#"{{"schemaVersion":2,"manifests":[{}]}}"#, manifests.join(","));
        fs::write(self.root.join("index.json"), text).unwrap();
    }
}
