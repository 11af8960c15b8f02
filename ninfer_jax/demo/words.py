"""Word lists that the tasks share. Combinations are many, so copying must be learned."""

NAMES = (
    "Ada Alan Amir Anna Ben Bora Carl Cleo Dana Dino Ella Emil Eva Finn Gina Hana Hugo Ida Igor "
    "Iris Ivan Jack Jana Joel Jun Kai Kira Lara Leo Lena Lin Lola Luca Maja Marc Mei Mila Nils "
    "Nina Noah Nora Omar Otto Paul Pia Ravi Remo Rosa Ruth Sara Sven Tara Theo Tom Uma Vera Wei "
    "Yara Yuki Zoe"
).split()

CITIES = (
    "Accra Athens Basel Berlin Bern Bonn Boston Cairo Dakar Delhi Dublin Geneva Hanoi Kiel Kyoto "
    "Lagos Lima Lisbon London Lyon Madrid Malmo Milan Minsk Miami Nairobi Naples Osaka Oslo Paris "
    "Porto Prague Quito Riga Rome Seoul Sofia Split Sydney Tokyo Tunis Turin Vienna Warsaw Zagreb "
    "Zurich"
).split()

CAPITALS = {
    "Austria": "Vienna", "Chile": "Santiago", "China": "Beijing", "Cuba": "Havana",
    "Egypt": "Cairo", "France": "Paris", "Ghana": "Accra", "Greece": "Athens", "India": "Delhi",
    "Ireland": "Dublin", "Italy": "Rome", "Japan": "Tokyo", "Kenya": "Nairobi", "Latvia": "Riga",
    "Norway": "Oslo", "Peru": "Lima", "Poland": "Warsaw", "Spain": "Madrid", "Turkey": "Ankara",
    "Vietnam": "Hanoi",
}  # fmt: skip

COLOURS = "red blue green black white yellow pink brown gray orange purple gold".split()

ANIMALS = "fox cat dog owl bear crab deer duck frog goat hare lion mole mouse swan wolf".split()

ITEMS = (
    "apple bread book lamp chair coat desk drum fork glass hat jam key kite milk pen piano ring "
    "rope salt shoe soap sofa spoon table tea tent vase"
).split()

JOBS = "baker cook farmer nurse painter pilot sailor singer smith tailor teacher writer".split()
