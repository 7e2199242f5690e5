#include "src/import/label_table.h"

#include <catch2/catch.hpp>

#include "tests/unit/error_text.h"
#include "tests/unit/temporary_folder.h"

namespace annulus {
namespace {

using Catch::Contains;
using Rows = std::vector<std::string>;

// Images 1.jpg to 3.jpg, and x/4.PNG, beside a table.
struct Table {
  Table() {
    std::filesystem::create_directories(folder / "x");
    for (const char* name : {"1.jpg", "2.jpg", "3.jpg", "x/4.PNG"}) test::write_text(folder / name, "");
  }

  // The rows as "file=label", or "file!problem".
  Rows read(const std::string& text) const {
    test::write_text(folder / "table.csv", text);
    Rows lines;
    for (const auto& [image, label, problem] : read_label_table(folder / "table.csv", folder / "").rows)
      lines.push_back(std::filesystem::relative(image, folder / "").string() +
                      (problem.empty() ? "=" + label : "!" + problem.substr(0, problem.find(" in row"))));
    return lines;
  }
  std::string error(const std::string& text) const {
    return test::error_of([&] { read(text); });
  }

  test::TemporaryFolder folder;
};

}  // namespace

TEST_CASE("tables with and without names of columns, in either order, with any separator", "[label_table]") {
  const Table table;
  const Rows expected{"1.jpg=cat", "x/4.PNG=dog"};
  CHECK(table.read("1.jpg,cat\nx/4.PNG,dog\n") == expected);
  CHECK(table.read("label;file\ncat;1.jpg\ndog;x/4.PNG") == expected);
  CHECK(table.read("\xef\xbb\xbfid\tbreed\r\n1\tcat\r\n\r\nx/4\tdog\r\n") == expected);
  CHECK(table.read("n, image_id , sex, Label\n7, 1.jpg, f, cat\n8, x/4.PNG, m, dog\n") == expected);
  CHECK(table.read("1.jpg,\"a \"\"b\"\", c\nd\"\n2.jpg,e") == Rows{"1.jpg=a \"b\", c\nd", "2.jpg=e"});
}

TEST_CASE("numbers that also name images are labels beside a column of images", "[label_table]") {
  const Table table;
  CHECK(table.read(",image,label\n1,2.jpg,3\n2,3.jpg,1\n") == Rows{"2.jpg=3", "3.jpg=1"});  // as pandas writes it
  CHECK(table.read("3,1.jpg\n1,2.jpg\n") == Rows{"1.jpg=3", "2.jpg=1"});
  CHECK(table.read("class,filename\n1,2.jpg\n") == Rows{"2.jpg=1"});
  CHECK_THAT(table.error("1,2\n2,3\n"), Contains("several columns name images"));
}

TEST_CASE("rows of missing images, without label, and of an image's second label have a problem", "[label_table]") {
  const Table table;
  CHECK(table.read("gone.jpg,a\n1.jpg,\n2.jpg,b\n2,c\n") ==
        Rows{"gone.jpg!no such image, named", "1.jpg!has no label", "2.jpg=b",
             "2.jpg!row 4 of " + (table.folder / "table.csv").string() + " names it again"});
}

TEST_CASE("labels are numbers of classes, or names", "[label_table]") {
  const Table table;
  const auto labels = [&](const std::string& text) {
    test::write_text(table.folder / "table.csv", text);
    return read_label_table(table.folder / "table.csv", table.folder / "");
  };
  CHECK(labels("1.jpg,10\n2.jpg,9\n").has_numbers());
  CHECK_FALSE(labels("1.jpg,10\n2.jpg,9a\n").has_numbers());
  CHECK(labels("1.jpg,b\n2.jpg,a\n3.jpg,b\n").names() == Rows{"a", "b"});
}

TEST_CASE("a line of a .jsonl file is a row", "[label_table]") {
  const Table table;
  const std::filesystem::path file = table.folder / "metadata.jsonl";
  const auto read = [&](const std::string& text) {
    test::write_text(file, text);
    Rows lines;
    for (const auto& row : read_label_table(file, table.folder / "").rows)
      lines.push_back(row.image.filename().string() + (row.problem.empty() ? "=" : "!") + row.label);
    return lines;
  };
  CHECK(read("{\"label\": \"cat\", \"file_name\": \"1.jpg\"}\r\n\n{\"file_name\": \"x/4.PNG\", \"label\": \"a, b\"}") ==
        Rows{"1.jpg=cat", "4.PNG=a, b"});
  CHECK(read("{\"n\": [1], \"label\": 3, \"file_name\": \"1.jpg\"}\n{\"file_name\": \"2.jpg\"}\n") ==
        Rows{"1.jpg=3", "2.jpg!"});
  CHECK_THAT(test::error_of([&] { read("{\"file_name\": \"1.jpg\", \"label\": 3}\n[]\n"); }),
             Contains("line 2 is no JSON object"));
  CHECK_THAT(test::error_of([&] { read("\n"); }), Contains("has no rows"));
}

TEST_CASE("metadata beside images is a table if it has labels", "[label_table]") {
  const Table table;
  CHECK_FALSE(metadata_in(table.folder / "", true));
  test::write_text(table.folder / "metadata.csv", "file_name,text\n1.jpg,a cat\n");
  CHECK_FALSE(metadata_in(table.folder / "", false));
  CHECK(metadata_in(table.folder / "", true) == table.folder / "metadata.csv");
  test::write_text(table.folder / "metadata.csv", "file_name,Label\n1.jpg,cat\n");
  CHECK(metadata_in(table.folder / "", false) == table.folder / "metadata.csv");
}

TEST_CASE("tables that can be understood in several ways are refused", "[label_table]") {
  const Table table;
  CHECK_THAT(table.error(""), Contains("has no rows"));
  CHECK_THAT(table.error("a.txt,b\n"), Contains("no column of the first 1 rows names an image"));
  CHECK_THAT(table.error("1.jpg\n2.jpg\n"), Contains("has a single column"));
  CHECK_THAT(table.error("bild,art\n1.jpg,cat\n"), Contains("line 1: 'bild' is neither an image"));
  CHECK_THAT(table.error("file,sex,breed\n1.jpg,f,cat\n"),
             Contains("which column has the labels? Line 1 has file, sex"));
  CHECK_THAT(table.error("1.jpg,cat\n2.jpg,a,b\n"), Contains("row 2 has 3 fields, but the first has 2"));
  CHECK_THAT(table.error("1.jpg,0.5\n2.jpg,-1\n"), Contains("numbers, but not classes from 0"));
  CHECK_THAT(table.error("1.jpg,\"cat\n2.jpg,dog\n"), Contains("a quote is not closed"));
  CHECK_THAT(table.error(std::string("1.jpg,a\0b\n", 10)), Contains("zero bytes"));
  CHECK(table.read("1.jpg,a\n./1.jpg,b\n").size() == 2);
  CHECK_THAT(table.read("1.jpg,a\n./1.jpg,b\n")[1], Contains("names it again"));
  CHECK_THAT(table.error("1.jpg,\n2.jpg,\n"), Contains("none of the rows has an image and a label"));
}

}  // namespace annulus
