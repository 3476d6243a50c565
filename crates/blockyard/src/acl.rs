//! POSIX access control lists, in the form of the `system.posix_acl_*` attributes.

/// The version of the attribute format.
const VERSION: u32 = 2;
/// The id of an entry that names no user or group.
const NO_ID: u32 = u32::MAX;

/// Which of a file's two access control lists is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AclKind {
    /// Who may do what with the file.
    Access,
    /// The list that new files in a directory inherit.
    Default,
}

impl AclKind {
    /// The name of the extended attribute that holds the list.
    pub(crate) const fn attribute(self) -> &'static str {
        match self {
            Self::Access => "system.posix_acl_access",
            Self::Default => "system.posix_acl_default",
        }
    }
}

/// Whom an entry applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    /// The owner.
    Owner,
    /// The user with this id.
    User(u32),
    /// The owning group.
    OwningGroup,
    /// The group with this id.
    Group(u32),
    /// The most that the entries `User`, `OwningGroup` and `Group` can grant.
    Mask,
    /// Everybody else.
    Others,
}

impl Subject {
    const fn to_tag(self) -> (u16, u32) {
        match self {
            Self::Owner => (0x01, NO_ID),
            Self::User(id) => (0x02, id),
            Self::OwningGroup => (0x04, NO_ID),
            Self::Group(id) => (0x08, id),
            Self::Mask => (0x10, NO_ID),
            Self::Others => (0x20, NO_ID),
        }
    }

    const fn from_tag(tag: u16, id: u32) -> Option<Self> {
        Some(match tag {
            0x01 => Self::Owner,
            0x02 => Self::User(id),
            0x04 => Self::OwningGroup,
            0x08 => Self::Group(id),
            0x10 => Self::Mask,
            0x20 => Self::Others,
            _ => return None,
        })
    }
}

/// What one subject may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AclEntry {
    /// Whom the entry applies to.
    pub subject: Subject,
    /// 4 to read, 2 to write, 1 to execute, or a sum of them.
    pub permissions: u16,
}

/// An access control list. Its entries are in the order of their subjects, unless [`Acl::parse`]
/// decoded a value with another order.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Acl(Vec<AclEntry>);

impl Acl {
    /// The list that is equivalent to the permissions of a mode.
    ///
    /// ```
    /// use blockyard::Acl;
    /// assert_eq!(Acl::of_mode(0o640).entries()[1].permissions, 4);
    /// ```
    #[must_use]
    pub fn of_mode(mode: u16) -> Self {
        let entry = |subject, shift: u16| AclEntry { subject, permissions: (mode >> shift) & 7 };
        Self(vec![entry(Subject::Owner, 6), entry(Subject::OwningGroup, 3), entry(Subject::Others, 0)])
    }

    /// The entries.
    ///
    /// ```
    /// use blockyard::{Acl, AclEntry, Subject};
    /// let list = Acl::of_mode(0o640);
    /// assert_eq!(list.entries().len(), 3);
    /// assert_eq!(list.entries()[0], AclEntry { subject: Subject::Owner, permissions: 6 });
    /// ```
    #[must_use]
    pub fn entries(&self) -> &[AclEntry] {
        &self.0
    }

    /// Sets what a subject may do. An earlier entry for the subject is replaced. If the subject is
    /// a [`User`](Subject::User) or [`Group`](Subject::Group), the mask becomes the union of all
    /// permissions of `User`, `OwningGroup` and `Group` entries.
    ///
    /// ```
    /// use blockyard::{Acl, AclEntry, Subject};
    /// let mut list = Acl::of_mode(0o600);
    /// list.grant(AclEntry { subject: Subject::User(1000), permissions: 6 });
    /// assert!(list.entries().contains(&AclEntry { subject: Subject::Mask, permissions: 6 }));
    /// ```
    pub fn grant(&mut self, entry: AclEntry) {
        self.put(entry);
        if matches!(entry.subject, Subject::User(_) | Subject::Group(_)) {
            let limited = self.0.iter().filter(|entry| {
                matches!(entry.subject, Subject::User(_) | Subject::OwningGroup | Subject::Group(_))
            });
            let permissions = limited.fold(0, |all, entry| all | entry.permissions);
            self.put(AclEntry { subject: Subject::Mask, permissions });
        }
    }

    fn put(&mut self, entry: AclEntry) {
        match self.0.iter_mut().find(|listed| listed.subject == entry.subject) {
            Some(listed) => *listed = entry,
            None => {
                let at = self.0.partition_point(|listed| listed.subject < entry.subject);
                self.0.insert(at, entry);
            }
        }
    }

    /// Decodes the value of a `system.posix_acl_*` attribute; `None` if the value does not have the
    /// form of an access control list. The entries keep the order that they have in the value.
    ///
    /// ```
    /// use blockyard::Acl;
    /// let list = Acl::of_mode(0o751);
    /// assert_eq!(Acl::parse(&list.to_bytes()), Some(list));
    /// assert_eq!(Acl::parse(b"no list"), None);
    /// ```
    #[must_use]
    pub fn parse(value: &[u8]) -> Option<Self> {
        let (version, entries) = value.split_first_chunk()?;
        if u32::from_le_bytes(*version) != VERSION || entries.len() % 8 != 0 {
            return None;
        }
        let entry = |bytes: &[u8]| {
            let tag = u16::from_le_bytes([bytes[0], bytes[1]]);
            let permissions = u16::from_le_bytes([bytes[2], bytes[3]]);
            let id = u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
            Some(AclEntry { subject: Subject::from_tag(tag, id)?, permissions })
        };
        entries.chunks_exact(8).map(entry).collect::<Option<_>>().map(Self)
    }

    /// Encodes the list as the value of a `system.posix_acl_*` attribute.
    ///
    /// ```
    /// use blockyard::Acl;
    /// assert_eq!(Acl::of_mode(0o640).to_bytes().len(), 4 + 3 * 8);
    /// ```
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut value = VERSION.to_le_bytes().to_vec();
        for AclEntry { subject, permissions } in &self.0 {
            let (tag, id) = subject.to_tag();
            value.extend(tag.to_le_bytes());
            value.extend(permissions.to_le_bytes());
            value.extend(id.to_le_bytes());
        }
        value
    }
}

#[cfg(test)]
mod tests {
    use super::{Acl, AclEntry, Subject};

    #[test]
    fn lists_keep_their_order_and_come_back() {
        let mut list = Acl::of_mode(0o751);
        list.grant(AclEntry { subject: Subject::Group(7), permissions: 2 });
        list.grant(AclEntry { subject: Subject::User(9), permissions: 4 });
        list.grant(AclEntry { subject: Subject::User(9), permissions: 0 });
        let shown: Vec<(Subject, u16)> =
            list.entries().iter().map(|entry| (entry.subject, entry.permissions)).collect();
        let wanted = [
            (Subject::Owner, 7),
            (Subject::User(9), 0),
            (Subject::OwningGroup, 5),
            (Subject::Group(7), 2),
            (Subject::Mask, 7),
            (Subject::Others, 1),
        ];
        assert_eq!(shown, wanted);
        assert_eq!(Acl::parse(&list.to_bytes()), Some(list));
    }

    /// Linux sets only lists in which the kinds of entry are in order, but a damaged image can hold
    /// a list in another order.
    #[test]
    fn granting_replaces_an_entry_of_a_list_in_another_order() {
        let value = Acl::of_mode(0o640).to_bytes();
        let reversed: Vec<u8> =
            value[..4].iter().chain(value[4..].rchunks_exact(8).flatten()).copied().collect();
        let mut list = Acl::parse(&reversed).unwrap();
        assert_eq!(list.entries()[0].subject, Subject::Others);
        list.grant(AclEntry { subject: Subject::Owner, permissions: 7 });
        assert_eq!(list.entries().len(), 3);
        assert_eq!(list.entries()[2], AclEntry { subject: Subject::Owner, permissions: 7 });
    }

    #[test]
    fn what_is_no_list_is_none() {
        let good = Acl::of_mode(0o600).to_bytes();
        assert!(Acl::parse(&good).is_some());
        assert!(Acl::parse(&good[..good.len() - 1]).is_none() && Acl::parse(&[]).is_none());
        for at in [0, 4] {
            let mut bad = good.clone();
            bad[at] ^= 0x40;
            assert!(Acl::parse(&bad).is_none());
        }
    }
}
