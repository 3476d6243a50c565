//! The judges of the images that cells leave. Our checker checks every image. e2fsck checks the
//! last image, and every image that the kernel wrote.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use blockyard_device::BlockDevice;
use blockyard_inspect::units::counted;

use crate::scratch::Scratch;

/// The findings of the judges.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Verdict {
    /// Errors that our checker found over all images.
    pub check_errors: u64,
    /// Images checked.
    pub images: u64,
    /// Whether all images that e2fsck checked were clean; `None` if it checked none.
    pub e2fsck_clean: Option<bool>,
    /// Why an image could not be passed to e2fsck, although e2fsck is installed; `None` if there
    /// was no such image.
    pub not_shown: Option<String>,
}

impl Verdict {
    /// Whether no judge found an error.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.check_errors == 0 && self.e2fsck_clean != Some(false)
    }

    /// The verdict in one line.
    #[must_use]
    pub fn text(&self) -> String {
        if self.images == 0 {
            return "no image was checked".to_owned();
        }
        let ours = match (self.check_errors, self.images) {
            (0, 1) => "the image passed our check".to_owned(),
            (0, images) => format!("all {} passed our check", counted(images, "image")),
            (errors, images) => {
                format!("our check found {} in {}", counted(errors, "error"), counted(images, "image"))
            }
        };
        let theirs = match self.e2fsck_clean {
            Some(true) if self.images == 1 => "e2fsck -fn found nothing in it",
            Some(true) => "e2fsck -fn found nothing in the last one",
            Some(false) => "e2fsck -fn found errors",
            None if self.not_shown.is_some() => "e2fsck was not asked",
            None => "e2fsck is not installed",
        };
        match &self.not_shown {
            Some(why) => format!("{ours}; {theirs} ({why})"),
            None => format!("{ours}; {theirs}"),
        }
    }

    /// Adds another verdict.
    pub fn add(&mut self, other: &Self) {
        self.check_errors += other.check_errors;
        self.images += other.images;
        self.e2fsck_clean = match (self.e2fsck_clean, other.e2fsck_clean) {
            (Some(a), Some(b)) => Some(a && b),
            (one, None) | (None, one) => one,
        };
        if self.not_shown.is_none() {
            self.not_shown.clone_from(&other.not_shown);
        }
    }

    pub(crate) fn check(&mut self, device: &dyn BlockDevice) -> Result<()> {
        let report = blockyard_check::check(device, &blockyard_check::Options::default())?;
        self.check_errors += report.errors;
        self.images += 1;
        Ok(())
    }

    /// Runs e2fsck, if it is installed, on the image that `save` writes to a path.
    pub(crate) fn e2fsck(&mut self, save: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
        let Some(program) = e2fsck_program() else { return Ok(()) };
        // The figures are valid without e2fsck. If there is no space for the image, say so and
        // continue.
        let folder = match Scratch::temporary("judge") {
            Ok(folder) => folder,
            Err(error) => {
                self.not_shown = Some(format!("no folder for the image: {error:#}"));
                return Ok(());
            }
        };
        let image = folder.path().join("image");
        if let Err(error) = save(&image) {
            self.not_shown = Some(format!("the image cannot be saved: {error:#}"));
            return Ok(());
        }
        self.e2fsck_file(program, &image)
    }

    pub(super) fn e2fsck_file(&mut self, program: &str, image: &Path) -> Result<()> {
        let output = Command::new(program).arg("-fn").arg(image).output().context("run e2fsck")?;
        let clean = output.status.success();
        self.add(&Self { e2fsck_clean: Some(clean), ..Self::default() });
        Ok(())
    }
}

/// The e2fsck program, if it is installed.
pub(crate) fn e2fsck_program() -> Option<&'static str> {
    ["e2fsck", "/sbin/e2fsck", "/usr/sbin/e2fsck"]
        .into_iter()
        .find(|program| Command::new(program).arg("-V").output().is_ok_and(|output| output.status.success()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A regression: the text was `all 1 images`.
    #[test]
    fn one_image_has_no_plural() {
        let one = Verdict { images: 1, e2fsck_clean: Some(true), ..Verdict::default() };
        assert_eq!(one.text(), "the image passed our check; e2fsck -fn found nothing in it");
        let wrong = Verdict { images: 1, check_errors: 1, ..Verdict::default() };
        assert!(wrong.text().starts_with("our check found 1 error in 1 image;"), "{}", wrong.text());
    }

    #[test]
    fn an_image_that_nobody_else_saw_is_told() {
        let mut all = Verdict { images: 2, ..Verdict::default() };
        assert!(all.text().ends_with("; e2fsck is not installed"));
        assert_eq!(Verdict::default().text(), "no image was checked");
        all.add(&Verdict { not_shown: Some("no room".to_owned()), ..Verdict::default() });
        assert!(all.text().ends_with("; e2fsck was not asked (no room)"), "{}", all.text());
        all.add(&Verdict { e2fsck_clean: Some(true), ..Verdict::default() });
        assert!(
            all.text().ends_with("; e2fsck -fn found nothing in the last one (no room)"),
            "{}",
            all.text()
        );
        assert!(all.is_clean());
    }

    #[test]
    fn verdicts_add_up() {
        let of = |check_errors, images, e2fsck_clean| Verdict {
            check_errors,
            images,
            e2fsck_clean,
            not_shown: None,
        };
        let mut all = of(1, 2, Some(true));
        all.add(&of(3, 4, None));
        assert_eq!(all, of(4, 6, Some(true)));
        all.add(&of(0, 1, Some(false)));
        all.add(&of(0, 1, Some(true)));
        assert_eq!(all, of(4, 8, Some(false)));
        assert!(!of(0, 1, Some(false)).is_clean() && !of(1, 1, Some(true)).is_clean());
    }
}
