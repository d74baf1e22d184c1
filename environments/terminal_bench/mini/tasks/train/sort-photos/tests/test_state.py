"""Every photo lies in the folder of its month."""

import unittest
from pathlib import Path

ROOT = Path("/app/photos")
PLACES = {
    "2024/03/15_0001.jpg": "IMG_20240315_0001.jpg\n",
    "2024/03/02_0002.jpg": "IMG_20240302_0002.jpg\n",
    "2023/12/24_0007.jpg": "IMG_20231224_0007.jpg\n",
    "2024/03/15_0003.jpg": "IMG_20240315_0003.jpg\n",
    "IMG_2024_0003.jpg": "IMG_2024_0003.jpg\n",
    "readme.txt": "readme.txt\n",
}


class Photos(unittest.TestCase):
    def test_places(self):
        files = [path for path in ROOT.rglob("*") if path.is_file()]
        found = {str(path.relative_to(ROOT)): path.read_text() for path in files}
        self.assertEqual(found, PLACES)


if __name__ == "__main__":
    unittest.main()
