"""Packs the inbox; run once when the image is built."""

import gzip
import io
import tarfile
import zipfile


def tar_gz(files):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def zipped(files):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def bill(amount):
    return b"amount: %d\n" % amount


deep = tar_gz({"deeper.zip": zipped({"d.bill": bill(8)})})
inbox = {
    "2024/march.zip": zipped({"march/a.bill": bill(120), "march/notes.txt": b"amount: 9999\n"}),
    "april.tar.gz": tar_gz({"x/y/b.bill": bill(75), "c.bill.gz": gzip.compress(bill(41))}),
    "may.zip": zipped({"deep.tar.gz": deep, "e.bill": bill(300)}),
    "f.bill": bill(6),
    "g.bills": b"",
}
with open("/app/inbox.tar.gz", "wb") as file:
    file.write(tar_gz(inbox))
