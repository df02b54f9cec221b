//! Files that lose their last name on one host while another host has them open.

use nectary_block::Buffer;
use nectary_volume::client::{NewInode, OpenAccess, WritePosition};

use crate::common::{ROOT, TestVolume};

/// Data of a closed file that is not committed is there for those who opened the file before its last name went.
#[tokio::test]
async fn removed_file_keeps_data_for_others() {
    let volume = TestVolume::new("removed-data").await;
    let _server = volume.serve(&[0, 1]).await;
    let (first, second) = (volume.connect(0).await, volume.connect(1).await);
    for (name, is_opened) in [(&b"opened"[..], true), (b"other", false)] {
        let new = NewInode { mode: libc::S_IFREG | 0o644, ..NewInode::default() };
        let (made, own) = first.create_open(ROOT, name, new).await.expect("it is made");
        own.write(WritePosition::Offset(0), vec![Buffer::copy_of(&[5; 4096])]).await.expect("it is written");
        own.close().await;
        let others = match is_opened {
            true => Some(second.open(made.id(), OpenAccess::Read, false).await.expect("it is opened")),
            false => None,
        };
        assert_eq!(first.uncommitted(), 1, "nobody has requested the data");
        first.unlink(ROOT, name, false).await.expect("it is removed");
        assert_eq!(first.uncommitted(), usize::from(is_opened), "what nobody can read is dropped");
        let refused = second.open(made.id(), OpenAccess::Read, false).await.is_err();
        assert_eq!(refused, !is_opened, "who has it open gets it again");
        if let Some(others) = others {
            assert_eq!(others.read(0, 4096).await.expect("it is read").to_vec(), [5; 4096]);
            others.close().await;
        }
    }
}
