#include "src/import/source.h"

#include <sys/stat.h>
#include <zlib.h>

#include <array>
#include <catch2/catch.hpp>
#include <memory>
#include <random>

#include "tests/unit/error_text.h"
#include "tests/unit/tar_file.h"
#include "tests/unit/temporary_folder.h"
#include "tests/unit/whole_plan.h"

namespace annulus {
namespace {

using Catch::Contains;
using Names = std::vector<std::string>;

// A source, and a folder beside it for notes.
struct Folder {
  Folder() {
    std::filesystem::create_directory(folders.source);
    std::filesystem::create_directory(folders.notes);
  }

  void write(const std::string& name, const std::string& content) const {
    std::filesystem::create_directories((folders.source / name).parent_path());
    test::write_text(folders.source / name, content);
  }
  void write_archive(const std::string& name, const std::vector<std::pair<std::string, std::string>>& members) const {
    std::filesystem::create_directories((folders.source / name).parent_path());
    test::write_tar(folders.source / name, members);
  }

  SourcePlan plan(const SourceFormat& format) const { return test::whole_plan(format, folders); }
  std::string plan_error(const SourceFormat& format) const {
    return test::error_of([&] { format.plan(folders); });
  }

  // All samples of a split as lines: "label bytes", or "label !problem".
  Names read(const SourceFormat& format, const std::string& split_name) const {
    const SourcePlan plan = test::whole_plan(format, folders);
    Names lines;
    for (const SourceSplit& split : plan.splits) {
      for (std::size_t piece = 0; split.name == split_name && piece < split.pieces.size(); ++piece) {
        format.read(folders, plan, split, piece, [&lines](const SourceSample& sample) {
          const std::string text(sample.bytes.begin(), sample.bytes.end());
          lines.push_back(std::to_string(sample.label) + " " + (sample.problem.empty() ? text : "!" + sample.problem));
          return true;
        });
      }
    }
    return lines;
  }

  test::TemporaryFolder folder;
  SourceFolders folders{folder / "source", folder / "notes"};
};

constexpr std::size_t kTarBlock = 512;

std::string tar_numbers(std::initializer_list<std::uint64_t> numbers) {
  std::string text;
  for (const std::uint64_t number : numbers) text += fmt::format("{:011o}", number) + '\0';
  return text;
}

// Changes texts at offsets in a member's header and updates its checksum.
void change_tar_header(std::string& archive, std::size_t header,
                       const std::vector<std::pair<std::size_t, std::string>>& changes) {
  for (const auto& [place, text] : changes) archive.replace(header + place, text.size(), text);
  archive.replace(header + 148, 8, 8, ' ');
  std::uint32_t sum = 0;
  for (const unsigned char c : archive.substr(header, kTarBlock)) sum += c;
  archive.replace(header + 148, 7, fmt::format("{:06o}", sum) + '\0');
}

}  // namespace

TEST_CASE("an unknown format lists the known ones", "[source]") {
  CHECK_THAT(test::error_of([] { source_format("jpeg"); }), Contains("'jpeg'") && Contains("folder, tar, text"));
}

TEST_CASE("class folders are listed in torchvision's order", "[source]") {
  const Folder source;
  source.write("train/b/2.jpg", "b2");
  source.write("train/b/10.jpeg", "b10");
  source.write("train/B c/x.PNG", "Bc");
  source.write("train/\xc3\xa9/deep/er/y.JPEG", "e");
  source.write("train/b/notes.txt", "no image");
  source.write("train/.hidden/z.jpg", "no class");
  source.write("val/b/v.jpg", "vb");
  source.write("test/none/v.jpg", "not looked at: val is there");
  CHECK(source.plan(kFolderSource).classes == Names{"B c", "b", "\xc3\xa9"});
  CHECK(source.read(kFolderSource, "train") == Names{"0 Bc", "1 b10", "1 b2", "2 e"});
  CHECK(source.read(kFolderSource, "test") == Names{"1 vb"});
}

TEST_CASE("classes directly in the source are training images", "[source]") {
  const Folder source;
  source.write("dog/1.jpg", "d");
  source.write("cat/deep/2.png", "c");
  CHECK(source.plan(kFolderSource).classes == Names{"cat", "dog"});
  CHECK(source.plan(kFolderSource).splits.size() == 1);
  CHECK(source.read(kFolderSource, "train") == Names{"0 c", "1 d"});
}

TEST_CASE("a table has the labels of a folder's images", "[source]") {
  Folder source;
  source.write("a.jpg", "a");
  source.write("deep/b.jpg", "b");
  source.write("no row.jpg", "not read");
  source.folders.labels = source.folder / "labels.csv";
  test::write_text(source.folders.labels, "id,breed\na,pug\ndeep/b.jpg,\"a, b\"\ngone,pug\n");
  CHECK(source.plan(kFolderSource).classes == Names{"a, b", "pug"});
  CHECK(source.plan(kFolderSource).shuffle);
  const Names lines = source.read(kFolderSource, "train");
  REQUIRE(lines.size() == 3);
  CHECK(lines[0] == "1 a");
  CHECK(lines[1] == "0 b");
  CHECK_THAT(lines[2], Contains("!no such image, named in row 4"));
  const std::string before = source.plan(kFolderSource).fingerprint;
  test::write_text(source.folders.labels, "a.jpg,7\ndeep/b.jpg,12\n");
  CHECK(source.plan(kFolderSource).classes.empty());
  CHECK(source.plan(kFolderSource).fingerprint != before);
  CHECK(source.read(kFolderSource, "train") == Names{"7 a", "12 b"});
}

TEST_CASE("Hugging Face's imagefolder has labels in metadata beside the images", "[source]") {
  const Folder source;
  source.write("train/images/1.jpg", "a");
  source.write("train/images/2.jpg", "b");
  source.write("train/metadata.csv", "file_name,label\nimages/1.jpg,dog\nimages/2.jpg,cat\n");
  source.write("test/1.png", "c");
  source.write("test/2.png", "d");
  source.write("test/metadata.jsonl",
               "{\"file_name\": \"1.png\", \"label\": \"cat\"}\n{\"file_name\": \"2.png\", \"label\": \"cow\"}\n");
  CHECK(source.plan(kFolderSource).classes == Names{"cat", "dog"});
  CHECK_THAT(source.plan(kFolderSource).remark, Contains("train/metadata.csv: has the labels"));
  CHECK(source.read(kFolderSource, "train") == Names{"1 a", "0 b"});
  CHECK(source.read(kFolderSource, "test") == Names{"0 c", "1 !'cow' is not a class of the training images"});
  source.write("test/metadata.jsonl", "{\"file_name\": \"1.png\", \"label\": 1}\n");
  CHECK(source.read(kFolderSource, "test") == Names{"0 !'1' is not a class of the training images"});
  source.write("train/metadata.csv", "file_name,label\nimages/1.jpg,1\nimages/2.jpg,0\n");
  CHECK(source.read(kFolderSource, "test") == Names{"1 c"});
  source.write("test/metadata.jsonl", "{\"file_name\": \"1.png\", \"label\": \"cat\"}\n");
  CHECK_THAT(source.plan_error(kFolderSource), Contains("labels are names, but the training images' are numbers"));
  std::filesystem::remove(source.folders.source / "test/metadata.jsonl");
  CHECK_THAT(source.plan(kFolderSource).remark, Contains("/test is not read: it has no table"));
}

TEST_CASE("folders of classes are preferred to metadata without labels", "[source]") {
  const Folder source;
  source.write("cat/1.jpg", "a");
  source.write("dog/2.jpg", "b");
  source.write("metadata.csv", "file_name,text\ncat/1.jpg,a cat\ndog/2.jpg,a dog\n");
  CHECK(source.read(kFolderSource, "train") == Names{"0 a", "1 b"});
  source.write("metadata.csv", "file_name,label\ncat/1.jpg,5\ndog/2.jpg,3\n");
  CHECK(source.read(kFolderSource, "train") == Names{"5 a", "3 b"});
  std::filesystem::remove(source.folders.source / "metadata.csv");
  source.write("train/1.jpg", "a");
  source.write("metadata.csv", "file_name,label\ntrain/1.jpg,5\n");
  CHECK_THAT(source.plan_error(kFolderSource), Contains("put one with the names of its images into each of train/"));
}

TEST_CASE("a source's format is recognized by its files' names", "[source]") {
  const Folder source;
  const auto recognized = [&source] { return recognized_format(source.folders.source).name; };
  const auto error = [&] { return test::error_of(recognized); };
  CHECK_THAT(error(), Contains("it is empty"));
  source.write("a/b/table.xlsx", "");
  CHECK_THAT(error(), Contains("neither images, archives nor text") && Contains("table.xlsx"));
  source.write("train-images-idx3-ubyte", "");
  CHECK_THAT(error(), Contains("scripts/import-arrays FILE SOURCE --from idx"));
  source.write("a/notes.txt", "");
  CHECK_THAT(error(), Contains("--from idx"));  // notes beside arrays are no text to train on
  std::filesystem::remove(source.folders.source / "train-images-idx3-ubyte");
  source.write(".hidden/1.jpg", "");
  CHECK(recognized() == "text");
  source.write_archive("shard-000000.tar", {});
  CHECK(recognized() == "tar");
  CHECK(recognized_format(source.folders.source / "shard-000000.tar").name == "tar");
  source.write("a/b/1.JPG", "");
  CHECK(recognized() == "folder");
  CHECK_THAT(test::error_of([&] { recognized_format(source.folder / "none"); }), Contains("no such file or folder"));
}

TEST_CASE("links are followed; broken ones are reported, and cycles end", "[source]") {
  const Folder source;
  source.write("train/a/1.jpg", "a1");
  source.write("elsewhere/2.jpg", "a2");
  const auto link = [&source](const std::string& to, const std::string& name) {
    std::filesystem::create_symlink(to, source.folders.source / "train" / name);
  };
  link("../../elsewhere", "a/link");
  link("../elsewhere", "b");
  link("nowhere", "a/gone.jpg");
  const Names lines = source.read(kFolderSource, "train");
  REQUIRE(lines.size() == 4);
  CHECK(lines[0] == "0 a1");
  CHECK_THAT(lines[1], Contains("gone.jpg: cannot open: No such file"));
  CHECK(lines[2] == "0 a2");
  CHECK(lines[3] == "1 a2");
}

TEST_CASE("unreadable files of a folder are reported, and the rest is read", "[source]") {
  const Folder source;
  const std::filesystem::path train = source.folders.source / "train";
  source.write("train/a/1.jpg", "a1");
  source.write("train/b/2.jpg", "b2");
  const auto link = [&train](const std::string& to, const std::string& name) {
    std::filesystem::create_symlink(to, train / name);
  };
  SECTION("links to an enclosing folder") {
    link("..", "a/circle");
    link("../..", "up");
    CHECK(source.plan(kFolderSource).classes == Names{"a", "b"});
    CHECK(source.read(kFolderSource, "train") ==
          Names{"0 !a link to a folder that it lies in", "0 a1", "0 !a link to a folder that it lies in", "1 b2"});
  }
  SECTION("links to themselves, as images, as folders, and as classes") {
    link("round.jpg", "a/round.jpg");
    link("round", "a/round");
    link("round", "round");
    const std::string reason = "Too many levels of symbolic links";
    const Names lines = source.read(kFolderSource, "train");
    REQUIRE(lines.size() == 5);
    CHECK(lines[0] == "0 !" + reason);  // train/round
    CHECK(lines[1] == "0 a1");
    CHECK(lines[2] == "0 !" + reason);
    CHECK_THAT(lines[3], Contains("round.jpg: cannot open: " + reason));
    CHECK(lines[4] == "1 b2");
  }
  SECTION("named pipes") {
    REQUIRE(::mkfifo((train / "a/pipe.jpg").c_str(), 0600) == 0);  // it has no writer
    const Names lines = source.read(kFolderSource, "train");
    REQUIRE(lines.size() == 3);
    CHECK_THAT(lines[1], Contains("pipe.jpg: a pipe or device, not a regular file"));
  }
}

TEST_CASE("archives that are named pipes are refused", "[source]") {
  const Folder source;
  source.write_archive("train/a.tar", {{"a/1.jpg", "one"}});
  REQUIRE(::mkfifo((source.folders.source / "train/b.tar").c_str(), 0600) == 0);
  const Names lines = source.read(kTarSource, "train");
  REQUIRE(lines.size() == 2);
  CHECK(lines[0] == "0 one");
  CHECK_THAT(lines[1], Contains("a pipe or device, not a regular file"));
}

TEST_CASE("a folder is split into pieces by its names, which are part of its fingerprint", "[source]") {
  const Folder source;
  for (int i = 0; i < 1001; ++i) source.write("train/a/" + std::to_string(10000 + i) + ".jpg", std::to_string(i));
  const SourcePlan plan = source.plan(kFolderSource);
  CHECK(plan.splits.at(0).pieces.size() == 2);
  CHECK(plan.splits.size() == 1);
  const Names lines = source.read(kFolderSource, "train");
  REQUIRE(lines.size() == 1001);
  CHECK(lines.back() == "0 1000");
  CHECK(source.plan(kFolderSource).fingerprint == plan.fingerprint);
  std::filesystem::rename(source.folders.source / "train/a/10000.jpg", source.folders.source / "train/a/0.jpg");
  CHECK(source.plan(kFolderSource).fingerprint != plan.fingerprint);
}

TEST_CASE("folders without a data set are refused with the expected layout", "[source]") {
  const Folder source;
  CHECK_THAT(source.plan_error(kFolderSource), Contains("train/CLASS/*.jpg"));
  source.write("1.jpg", "");
  CHECK_THAT(source.plan_error(kFolderSource),
             Contains("has images, but no folders of classes") && Contains("--labels"));
  std::filesystem::create_directories(source.folders.source / "cat");
  CHECK_THAT(source.plan_error(kFolderSource), Contains("cat: has no images"));
  std::filesystem::create_directories(source.folders.source / "val");
  CHECK_THAT(source.plan_error(kFolderSource), Contains("train: missing beside val/"));
  std::filesystem::create_directories(source.folders.source / "train");
  CHECK_THAT(source.plan_error(kFolderSource), Contains("has no class folders"));
  source.write("train/a/1.jpg", "a");
  source.write("train/b/1.txt", "b");
  CHECK_THAT(source.plan_error(kFolderSource), Contains("train/b: has no images"));
  source.write("train/b/1.jpg", "b");
  source.write("val/c/1.jpg", "c");
  CHECK_THAT(source.plan_error(kFolderSource), Contains("val/c: no such class"));
}

TEST_CASE("files become documents", "[source]") {
  Folder source;
  source.write("b.txt", "bb");
  source.write("a/z", "az");
  source.write("a/b/c.txt", "abc");
  source.write("c.gz", "");
  {
    const std::unique_ptr<gzFile_s, int (*)(gzFile)> file(gzopen((source.folders.source / "c.gz").c_str(), "wb"),
                                                          gzclose);
    gzputs(file.get(), "compressed");
  }
  source.write("d.txt", "");
  source.write("e.bin", std::string("e\0", 2));
  source.write(".hidden", "h");
  CHECK(source.plan(kTextSource).is_text);
  CHECK(source.read(kTextSource, "train") ==
        Names{"0 abc", "0 az", "0 bb", "0 compressed", "0 !empty", "0 !binary: has a zero byte near its beginning"});

  source.write("c.gz", test::read_text(source.folders.source / "c.gz").substr(0, 15));
  CHECK_THAT(source.read(kTextSource, "train")[3], Contains("0 !cannot read"));

  source.folders.more = {source.folders.source / "b.txt"};
  CHECK(source.read(kTextSource, "train").back() == "0 bb");
}

TEST_CASE("large documents arrive in parts", "[source]") {
  const Folder source;
  std::string text;
  while (text.size() < (3 << 20)) text += std::to_string(text.size()) + " ";
  source.write("large", text);
  const SourcePlan plan = source.plan(kTextSource);
  std::string all;
  std::size_t parts = 0, ends = 0;
  kTextSource.read(source.folders, plan, plan.splits[0], 0, [&](const SourceSample& sample) {
    all.append(sample.bytes.begin(), sample.bytes.end());
    ++parts;
    ends += sample.ends;
    CHECK(sample.bytes.size() <= (1 << 20));
    return true;
  });
  CHECK(all == text);
  CHECK((parts == 4 && ends == 1));
}

TEST_CASE("pieces have a thousand documents, or large ones", "[source]") {
  const Folder source;
  for (int i = 0; i < 1001; ++i) source.write("many/" + std::to_string(i), "x");
  for (const char* name : {"a", "b", "c"}) source.write(std::string("large/") + name, std::string(5 << 20, 'x'));
  CHECK(source.plan(kTextSource).splits[0].pieces.size() == 3);  // two of the large ones, the third and 999, and two
}

TEST_CASE("splits of text", "[source]") {
  const Folder source;
  source.write("train/a", "a");
  source.write("validation/b", "b");
  source.write("test/c", "c");
  source.write("d", "d");
  CHECK(source.read(kTextSource, "train") == Names{"0 a"});
  CHECK(source.read(kTextSource, "test") == Names{"0 b"});
  std::filesystem::remove_all(source.folders.source / "train/a");
  CHECK_THAT(source.plan_error(kTextSource), Contains("train: has no files"));
}

TEST_CASE("archives with label files beside the images", "[source]") {
  const Folder source;
  source.write_archive("train/1.tar.gz",
                       {{"s/0.jpg", "zero"}, {"s/0.cls", "7\n"}, {"s/1.cls", "12"}, {"s/1.png", "one"}});
  source.write_archive("train/0.tar", {{"k.json", "{}"}, {"k.jpeg", "k"}, {"k.cls", "0"}, {"README", "ignored"}});
  source.write_archive("validation/v.tar.zst", {{"v.JPG", "v"}, {"v.cls", "1"}});
  CHECK(source.plan(kTarSource).classes.empty());
  CHECK_FALSE(source.plan(kTarSource).shuffle);
  CHECK(source.read(kTarSource, "train") == Names{"0 k", "7 zero", "12 one"});
  CHECK(source.read(kTarSource, "test") == Names{"1 v"});
}

TEST_CASE("archives without a split in their names, and a single archive, are training images", "[source]") {
  const Folder source;
  source.write_archive("shard-000000.tar", {{"a.jpg", "a"}, {"a.cls", "1"}});
  source.write_archive("shard-000001.tar", {{"b.jpg", "b"}, {"b.cls", "2"}});
  CHECK(source.read(kTarSource, "train") == Names{"1 a", "2 b"});
  Folder single;
  single.folders.source = source.folders.source / "shard-000001.tar";
  CHECK(single.read(kTarSource, "train") == Names{"2 b"});
  CHECK(single.plan(kTarSource).splits.size() == 1);
  source.write_archive("val.tar", {{"c.jpg", "c"}, {"c.cls", "3"}});
  CHECK_THAT(source.plan_error(kTarSource), Contains("archives of val images, such as val.tar"));
}

TEST_CASE("images of val/ within an archive of training images are listed", "[source]") {
  Folder source;
  source.write_archive("all.tar", {{"train/a/1.jpg", "a"}, {"train/b/1.jpg", "b"}, {"val/c/1.jpg", "c"}});
  source.folders.source /= "all.tar";
  CHECK(source.plan(kTarSource).classes == Names{"a", "b"});
  const Names lines = source.read(kTarSource, "train");
  REQUIRE(lines.size() == 3);
  CHECK(lines[0] == "0 a");
  CHECK_THAT(lines[2], Contains("!in val/ within all.tar"));
}

TEST_CASE("labels are fields of JSON files beside the images", "[source]") {
  Folder source;
  source.write_archive("train-1.tar", {{"a.json", R"({"label": 4, "caption": "x"})"},
                                       {"a.jpg", "a"},
                                       {"b.jpg", "b"},
                                       {"b.json", R"({"label": "four"})"},
                                       {"c.jpg", "c"},
                                       {"c.json", "{"},
                                       {"d.jpg", "d"}});
  CHECK(source.plan(kTarSource).classes.empty());
  CHECK(source.read(kTarSource, "train") == Names{"4 a", "0 !'label' of its .json is not a whole number",
                                                  "0 !its .json does not have the field 'label'",
                                                  "0 !no .json beside it"});
  source.write_archive("train-1.tar", {{"a.cls", "3"}, {"a.jpg", "a"}, {"a.json", R"({"kind": "cat", "n": 9})"}});
  source.write_archive("train-2.tar", {{"b.jpg", "b"}, {"b.json", R"({"kind": "ant", "n": 8})"}});
  CHECK(source.read(kTarSource, "train") == Names{"3 a", "0 !no .cls beside it"});
  source.folders.label_key = "kind";
  CHECK(source.plan(kTarSource).classes == Names{"ant", "cat"});
  CHECK_FALSE(source.plan(kTarSource).shuffle);
  CHECK(source.read(kTarSource, "train") == Names{"1 a", "0 b"});
  source.folders.label_key = "n";
  CHECK(source.read(kTarSource, "train") == Names{"9 a", "8 b"});
  source.folders.label_key = "absent";
  CHECK_THAT(source.plan_error(kTarSource), Contains("--label-key absent") && Contains("fields: kind, n"));
  source.folders.label_key = "";
  source.write_archive("train-1.tar", {{"b.jpg", "b"}, {"b.json", R"({"kind": "ant"})"}});
  CHECK_THAT(source.plan_error(kTarSource), Contains("name it with --label-key: kind"));
}

TEST_CASE("a missing label or image in an archive is reported with its sample", "[source]") {
  const Folder source;
  source.write_archive("train.tar", {{"a.jpg", "a"},
                                     {"b.cls", "1"},
                                     {"c.jpg", "c"},
                                     {"c.cls", "cat"},
                                     {"d.jpg", "d"},
                                     {"d.cls", "-1"},
                                     {"e.jpg", ""},
                                     {"e.cls", ""},
                                     {"f.mask.png", "m"},
                                     {"f.cls", "3"}});
  CHECK(source.read(kTarSource, "train") ==
        Names{"0 !no .cls beside it", "1 !no image (.jpg, .jpeg, .png) beside its .cls",
              "0 !its .cls does not hold a whole number", "-1 d", "0 !its .cls does not hold a whole number",
              "3 !no image (.jpg, .jpeg, .png) beside its .cls"});
}

// The number of samples read, and listed with a problem.
std::pair<std::size_t, std::size_t> counts(const Folder& source) {
  const Names lines = source.read(kTarSource, "train");
  const auto listed = static_cast<std::size_t>(
      std::ranges::count_if(lines, [](const auto& line) { return line.find('!') != line.npos; }));
  return {lines.size() - listed, listed};
}

TEST_CASE("members with dotted keys are listed", "[source]") {
  const Folder source;
  source.write_archive("train.tar", {{"a.png", "a"}, {"a.cls", "1"}, {"d.5.png", "d"}, {"d.5.cls", "2"}});
  Names lines = source.read(kTarSource, "train");
  REQUIRE(lines.size() == 2);
  CHECK(lines[0] == "1 a");
  CHECK_THAT(lines[1], Contains("!d.5.png: keys end at the first dot") && Contains("'d'"));
  source.write_archive("train.tar", {{"1.input.png", "x"}, {"1.target.cls", "1"}});
  CHECK(counts(source) == std::pair<std::size_t, std::size_t>(0, 1));
  source.write_archive("train.tar",
                       {{"v1.0_1.jpg", "x"}, {"v1.0_1.cls", "1"}, {"v1.0_2.jpg", "y"}, {"v1.0_2.cls", "1"}});
  CHECK(counts(source) == std::pair<std::size_t, std::size_t>(0, 2));
  source.write_archive("train.tar", {{"a.png", "a"}, {"a.cls", "1"}, {"a.b.png", "b"}, {"a.b.cls", "2"}});
  CHECK(counts(source) == std::pair<std::size_t, std::size_t>(1, 1));
  source.write_archive("train.tar", {{"a.png", "a"}, {"a.mask.png", "m"}, {"a.cls", "1"}});  // a field of a
  CHECK(counts(source) == std::pair<std::size_t, std::size_t>(1, 0));
}

TEST_CASE("members of one key and field are samples of their own, or listed", "[source]") {
  const Folder source;
  source.write_archive("train.tar", {{"1.png", "a"},
                                     {"1.cls", "1"},
                                     {"1.png", "b"},
                                     {"1.cls", "2"},
                                     {"2.PNG", "c"},
                                     {"2.CLS", "3"},
                                     {"1.png", "d"},
                                     {"1.cls", "4"}});
  CHECK(source.read(kTarSource, "train") == Names{"1 a", "2 b", "3 c", "4 d"});
  source.write_archive("train.tar", {{"1.png", "a"}, {"1.png", "b"}, {"1.cls", "1"}, {"1.cls", "2"}});
  const std::string twice = "0 !2 members of the same name; keys must be unique";
  CHECK(source.read(kTarSource, "train") == Names{twice, twice});
  source.write_archive("train.tar", {{"1.jpg", "a"}, {"1.png", "b"}, {"1.cls", "1"}, {"2.png", "c"}, {"2.cls", "3"}});
  CHECK(source.read(kTarSource, "train") == Names{"1 !has 2 images: .jpg, .png; one is expected", "3 c"});
}

TEST_CASE("members without a key do not divide a sample", "[source]") {
  const Folder source;
  source.write_archive(
      "train.tar",
      {{"._1.jpg", "x"}, {"1.jpg", "a"}, {"._1.cls", "x"}, {"README", "x"}, {"1.cls", "1"}, {".2.png", "x"}});
  CHECK(source.read(kTarSource, "train") == Names{"0 !its name begins with a dot: it has no key", "1 a"});
}

TEST_CASE("each sample of a random archive is read or listed", "[source]") {
  std::mt19937 random(1);
  const auto below = [&random](std::uint32_t end) { return static_cast<std::uint32_t>(random() % end); };
  for (int round = 0; round < 50; ++round) {
    std::vector<std::pair<std::string, std::string>> members{{"first.png", "x"}, {"first.cls", "0"}};
    std::size_t samples = 1;
    for (std::uint32_t key = 0; key < 1 + below(20); ++key) {
      const std::string folder = below(3) == 0 ? "f.g/" : "";
      std::string name = folder + std::array{"k", "k.0", "k.v2.1", "K-", "k.png"}[below(5)] + std::to_string(key);
      if (below(4) == 0) name = "shared." + std::to_string(key);
      const std::uint32_t copies = below(5) == 0 ? 2 : 1;
      for (std::uint32_t copy = 0; copy < copies; ++copy) {
        const std::uint32_t kind = below(6);
        members.emplace_back(name + std::array{".jpg", ".png", ".JPEG"}[copy], "x");
        if (kind != 0 || copies == 2) members.emplace_back(name + ".cls", "1");
        if (kind == 1) members.emplace_back(name + ".json", "{}");
      }
      samples += copies;
    }
    const Folder source;
    source.write_archive("train.tar", members);
    const auto [read, listed] = counts(source);
    CHECK(read + listed == samples);
    CHECK(read >= 1);
  }
}

TEST_CASE("archives without labels are refused", "[source]") {
  const Folder source;
  source.write_archive("train/cat.tar", {{"01.jpg", "a"}, {"01.json", "{}"}, {"01.txt", "a cat"}});
  source.write_archive("train/dog.tar", {{"11.jpg", "b"}, {"11.json", "{}"}, {"11.txt", "a dog"}});
  CHECK_THAT(source.plan_error(kTarSource), Contains("cat.tar: its images have no labels") && Contains("KEY.cls") &&
                                                Contains("beside an image there is 01."));
  source.write_archive("train/cat.tar", {{"cat/01.jpg", "a"}, {"cat/01.txt", "a cat"}});
  CHECK_THAT(source.plan_error(kTarSource), Contains("cat.tar: its images have no labels"));
  std::filesystem::remove_all(source.folders.source / "train");
  for (const char* name : {"train/00000.tar", "train/00001.tar"}) source.write_archive(name, {{"1.jpg", "a"}});
  CHECK_THAT(source.plan_error(kTarSource), Contains("numbers of shards"));
  std::filesystem::remove(source.folders.source / "train/00001.tar");
  CHECK_THAT(source.plan_error(kTarSource), Contains("would be several"));
  std::vector<std::pair<std::string, std::string>> members(70);
  for (std::size_t i = 0; i < members.size(); ++i) members[i] = {fmt::format("{}.jpg", i), "x"};
  members.emplace_back("0.cls", "1");
  for (const char* name : {"train/00000.tar", "train/x.tar"}) source.write_archive(name, members);
  CHECK_THAT(test::error_of([&] { source.read(kTarSource, "train"); }), Contains("0.cls: a label, but the first"));
}

TEST_CASE("archives with folders of classes", "[source]") {
  const Folder source;
  source.write_archive("a-train-0.tar", {{"./x/b/1.jpg", "b1"}, {"./x/a/1.jpg", "a1"}});
  source.write_archive("a-train-1.tar", {{"x/c/1.JPEG", "c1"}, {"x/c/about.txt", "ignored"}});
  source.write_archive("a-val.tar", {{"c/1.jpg", "vc"}, {"d/1.jpg", "vd"}});
  source.write_archive("trainer.tar", {{"c/1.jpg", "not looked at"}});
  CHECK(source.plan(kTarSource).classes == Names{"a", "b", "c"});
  CHECK(source.plan(kTarSource).shuffle);
  CHECK(source.read(kTarSource, "train") == Names{"1 b1", "0 a1", "2 c1"});
  CHECK(source.read(kTarSource, "test") == Names{"2 vc", "3 !'d' is not a class of the training images"});
}

TEST_CASE("archives named after classes", "[source]") {
  const Folder source;
  source.write_archive("train/n02.tar", {{"n02_1.JPEG", "two"}});
  source.write_archive("train/n01.tar", {{"n01_7.JPEG", "one"}, {"n01_8.JPEG", "another"}});
  source.write_archive("val/n02.tar", {{"v.JPEG", "val"}});
  CHECK(source.plan(kTarSource).classes == Names{"n01", "n02"});
  CHECK(source.read(kTarSource, "train") == Names{"0 one", "0 another", "1 two"});
  CHECK(source.read(kTarSource, "test") == Names{"1 val"});
}

TEST_CASE("invalid archives are refused with a reason", "[source]") {
  const Folder source;
  CHECK_THAT(source.plan_error(kTarSource), Contains("has no archives: *.tar, train/*.tar"));
  source.write("train/a.tar", "this is no archive");
  CHECK_THAT(source.plan_error(kTarSource), Contains("train/a.tar: cannot read as a tar archive"));
  source.write_archive("train/a.tar", {{"a.txt", "no image"}});
  CHECK_THAT(source.plan_error(kTarSource), Contains("among its first members"));
  std::filesystem::remove_all(source.folders.source / "train");
  source.write_archive("train.tar", {{"a.jpg", "no label"}});
  CHECK_THAT(source.plan_error(kTarSource), Contains("no labels"));
}

TEST_CASE("an archive damaged at its beginning is reported, and the others are read", "[source]") {
  const Folder source;
  source.write("train/0.tar", "this is no archive");
  source.write_archive("train/1.tar", {{"a/1.jpg", "one"}});
  source.write_archive("train/2.tar", {{"b/2.jpg", "two"}});
  std::string content = test::read_text(source.folders.source / "train/2.tar");
  content[0] = 'c';  // makes the first header's checksum wrong
  source.write("train/2.tar", content);
  CHECK(source.plan(kTarSource).classes == Names{"a"});
  const Names lines = source.read(kTarSource, "train");
  REQUIRE(lines.size() == 3);
  CHECK_THAT(lines[0], Contains("!cannot read as a tar archive"));
  CHECK(lines[1] == "0 one");
  CHECK_THAT(lines[2], Contains("!cannot read as a tar archive"));
}

TEST_CASE("links in an archive are reported, not silently dropped", "[source]") {
  const Folder source;
  source.write_archive(
      "train/0.tar",
      {{"a/1.jpg", "one"}, {"a/hard.jpg", test::kHardLink}, {"a/soft.jpg", test::kSoftLink}, {"a/2.jpg", "two"}});
  CHECK(source.read(kTarSource, "train") ==
        Names{"0 one", "0 !a/hard.jpg: a link or a device; only files are supported",
              "0 !a/soft.jpg: a link or a device; only files are supported", "0 two"});
  source.write_archive("train/0.tar", {{"1.jpg", "one"}, {"1.cls", "7"}, {"2.jpg", "two"}, {"2.cls", test::kSoftLink}});
  CHECK(source.read(kTarSource, "train") == Names{"7 one", "0 !2.cls: a link or a device; only files are supported"});
}

TEST_CASE("all complete images of a truncated archive are read", "[source]") {
  const Folder source;
  source.write_archive("train.tar", {{"a/1.jpg", "one"}, {"a/2.jpg", std::string(5000, 'x')}});
  const std::string whole = test::read_text(source.folders.source / "train.tar");
  const SourcePlan plan = source.plan(kTarSource);
  source.write("train.tar", whole.substr(0, 3000));
  Names problems;
  Names names;
  kTarSource.read(source.folders, plan, plan.splits[0], 0, [&](const SourceSample& sample) {
    names.push_back(sample.name);
    problems.push_back(sample.problem);
    return true;
  });
  REQUIRE(names.size() == 2);
  CHECK_THAT(names[0], Contains("train.tar: a/1.jpg"));
  CHECK(problems[0].empty());
  CHECK_THAT(names[1], Contains("train.tar"));
  CHECK_THAT(problems[1], Contains("Truncated"));
}

TEST_CASE("an archive truncated within a header is read up to the sample before it", "[source]") {
  const Folder source;
  source.write_archive("train.tar", {{"a.jpg", "A"}, {"a.cls", "7"}, {"b.jpg", "B"}, {"b.cls", "8"}});
  const std::string whole = test::read_text(source.folders.source / "train.tar");
  source.write("train.tar", whole.substr(0, 4 * kTarBlock + 100));
  const Names lines = source.read(kTarSource, "train");
  REQUIRE(lines.size() == 2);
  CHECK(lines[0] == "7 A");
  CHECK_THAT(lines[1], Contains("!") && Contains("Truncated"));
  source.write("train.tar", whole.substr(0, 6 * kTarBlock));  // b.jpg has no .cls, but because of the damaged archive
  CHECK(source.read(kTarSource, "train").at(0) == "7 A");
}

TEST_CASE("an archive with a damaged header is reported", "[source]") {
  const Folder source;
  source.write_archive("train-0.tar", {{"a/0.jpg", "zero"}});  // determines the archives' format
  source.write_archive("train-1.tar", {{"a/1.jpg", "one"}, {"a/2.jpg", "two"}, {"a/3.jpg", "three"}});
  std::string content = test::read_text(source.folders.source / "train-1.tar");
  content[2 * kTarBlock] = 'b';  // the second one's name
  source.write("train-1.tar", content);
  const Names lines = source.read(kTarSource, "train");
  REQUIRE(lines.size() == 3);
  CHECK(lines[1] == "0 one");
  CHECK_THAT(lines[2], Contains("!") && Contains("Damaged tar archive"));
}

TEST_CASE("a sparse member with unordered parts is reported for its archive", "[source]") {
  const Folder source;
  source.write_archive("train.tar", {{"a/1.jpg", "one"}, {"a/2.jpg", std::string(2 * kTarBlock, 'x')}});
  std::string content = test::read_text(source.folders.source / "train.tar");
  change_tar_header(content, 2 * kTarBlock,
                    {{156, "S"},  // GNU's sparse member: (offset, bytes) twice, and the real size
                     {257, std::string("ustar  \0", 8)},
                     {386, tar_numbers({1024, 512, 0, 512})},
                     {483, tar_numbers({4096})}});
  source.write("train.tar", content);
  const Names lines = source.read(kTarSource, "train");
  REQUIRE(lines.size() == 2);
  CHECK(lines[0] == "0 one");
  CHECK_THAT(lines[1], Contains("!") && Contains("sparse"));
}

TEST_CASE("only the member with an impossible size is skipped", "[source]") {
  const Folder source;
  source.write_archive("train.tar", {{"a/1.jpg", std::string(600, 'x')}, {"a/2.jpg", "two"}});
  std::string content = test::read_text(source.folders.source / "train.tar");
  // 300 MB, all a hole of which the file stores nothing.
  change_tar_header(content, 0,
                    {{156, "S"},
                     {257, std::string("ustar  \0", 8)},
                     {386, tar_numbers({0, 600, 300000000, 0})},
                     {483, tar_numbers({300000000})}});
  source.write("train.tar", content);
  const Names lines = source.read(kTarSource, "train");
  REQUIRE(lines.size() == 2);
  CHECK_THAT(lines[0], Contains("a/1.jpg: 300000000 bytes; at most"));
  CHECK(lines[1] == "0 two");
}

TEST_CASE("a folder's fingerprint changes with an image's content", "[source]") {
  const Folder source;
  source.write("train/a/1.jpg", "one");
  std::filesystem::create_symlink("nowhere", source.folders.source / "train/a/2.jpg");
  const std::string before = source.plan(kFolderSource).fingerprint;
  CHECK(source.plan(kFolderSource).fingerprint == before);
  source.write("train/a/1.jpg", "another");
  CHECK(source.plan(kFolderSource).fingerprint != before);
}

TEST_CASE("a fingerprint changes with a file's content", "[source]") {
  const test::TemporaryFolder folder;
  const std::array files{folder / "a"};
  test::write_text(folder / "a", "1");
  const std::string before = fingerprint_of(files);
  CHECK(fingerprint_of(files) == before);
  test::write_text(folder / "a", "22");
  CHECK(fingerprint_of(files) != before);
}

}  // namespace annulus
